// These are the words of lab/hopper/wgmma.cuh on the CPU. A warp computes its 16 of the 64 rows
// when it issues a wgmma, from what shared memory holds then; d is NaN until the wait that ends the
// group. It is an error if the operands or d have changed before this wait: the GPU may have used
// them at any time.
#pragma once
#include "lab/host/instructions/format_words.hpp"

namespace lab::host {

// A lane brings this to one wgmma; all but `rows` is the same in all lanes of the warp.
struct WgmmaRequest {
  u64 a, b;
  const u32* rows;  // of a, in registers; null: `a` says where they are
  Input input;
  bool a_major_mn, b_major_mn, accumulate;
  int columns;
};

LAB_EXPORT void fence_async_shared();
LAB_EXPORT void act_wgmma(Warp& warp);
LAB_EXPORT void act_wgmma_fence(Warp& warp);
LAB_EXPORT void act_wgmma_commit(Warp& warp);
LAB_EXPORT void act_wgmma_wait(Warp& warp);

[[gnu::always_inline]] inline void issue_wgmma(void* d, const WgmmaRequest& request, Where where) {
  Lane& mine = my_lane();
  mine.in = &request;
  mine.out = d;
  meet_whole_warp(Word::wgmma, where, act_wgmma);
}

}  // namespace lab::host

namespace lab {

// The CPU has one way to shared memory, so that only the checked build needs the fence.
LAB_WORD void fence_async_shared() { host::fence_async_shared(); }
LAB_WORD void wgmma_fence(LAB_HERE) {
  host::meet_whole_warp(host::Word::wgmma_fence, here, host::act_wgmma_fence);
}
LAB_WORD void wgmma_commit(LAB_HERE) {
  host::meet_whole_warp(host::Word::wgmma_commit, here, host::act_wgmma_commit);
}
template <int N> LAB_WORD void wgmma_wait(LAB_HERE) {
  host::my_lane().source = N;
  host::meet_whole_warp(host::Word::wgmma_wait, here, host::act_wgmma_wait);
}
template <int Registers> LAB_DEVICE void fence_operand(float (&)[Registers]) {}
template <class T, Major A = Major::k, Major B = Major::k, int Registers>
LAB_WORD void wgmma(float (&d)[Registers], u64 a, u64 b, bool accumulate = true, LAB_HERE) {
  static_assert(sizeof(T) == 2 || (A == Major::k && B == Major::k));
  host::issue_wgmma(
      d,
      {a, b, nullptr, host::input_of<T>, A == Major::mn, B == Major::mn, accumulate, Registers * 2},
      here);
}
template <class T, Major B = Major::k, int Registers>
LAB_WORD void wgmma(float (&d)[Registers], const u32 (&a)[4], u64 b, bool accumulate = true,
                    LAB_HERE) {
  static_assert(sizeof(T) == 2 || B == Major::k);
  host::issue_wgmma(
      d, {0, b, a, host::input_of<T>, false, B == Major::mn, accumulate, Registers * 2}, here);
}

}  // namespace lab
