// This file has the warp-wide words: what each lane brings, and what the last lane to arrive does.
#pragma once
#include "lab/host/memory/memory.hpp"

namespace lab::host {

LAB_EXPORT void act_sync_warp(Warp& warp);
LAB_EXPORT void act_shfl(Warp& warp);
LAB_EXPORT void act_warp_any(Warp& warp);
LAB_EXPORT void act_ldmatrix(Warp& warp);
LAB_EXPORT void act_ldmatrix_trans(Warp& warp);
LAB_EXPORT void store_matrices(u32 shared_row, const u32* r, Word word, Where where,
                               void (*act)(Warp&));
LAB_EXPORT void act_stmatrix(Warp& warp);
LAB_EXPORT void act_movmatrix_trans(Warp& warp);
LAB_EXPORT void act_mma_f16(Warp& warp);
LAB_EXPORT void act_mma_bf16(Warp& warp);
[[noreturn]] LAB_EXPORT void report_part_of_warp(Word word, Where where);

struct MmaOperands {
  const u32* a;
  u32 b0, b1;
};

// Meets the other lanes in a word that needs all 32 lanes of a warp.
[[gnu::always_inline]] inline void meet_whole_warp(Word word, Where where, void (*act)(Warp&)) {
  if (my_warp().n_lanes != warp_size) [[unlikely]]
    report_part_of_warp(word, where);
  meet<true>(word, where, act);
}

// Gives every lane a 64-bit result made from all lanes' values.
[[gnu::always_inline]] inline u64 exchange(Word word, Where where, u64 value, int source,
                                           void (*act)(Warp&)) {
  u64 result;
  Lane& mine = my_lane();
  mine.out = &result;
  mine.value = value;
  mine.source = source;
  meet<false>(word, where, act);
  return result;
}

[[gnu::always_inline]] inline void load_matrices(u32* out, const void* row, Word word, Where where,
                                                 void (*act)(Warp&)) {
  check_shared_row(row, word, where);
  Lane& mine = my_lane();
  mine.in = row;
  mine.out = out;
  meet_whole_warp(word, where, act);
}

[[gnu::always_inline]] inline void multiply(float* d, const u32* a, u32 b0, u32 b1, Word word,
                                            Where where, void (*act)(Warp&)) {
  const MmaOperands operands{a, b0, b1};
  Lane& mine = my_lane();
  mine.in = &operands;
  mine.out = d;
  meet_whole_warp(word, where, act);
}

}  // namespace lab::host
