// The last lane to arrive calls these functions for the whole warp.
#include "lab/host/instructions/warp_words.hpp"

#include <cstring>

#include "lab/host/memory/memory.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"
#include "lab/host/arithmetic/tensor_core.hpp"

namespace lab::host {
namespace {

// Element (row, column) of an 8x8 matrix lies in lane row * 4 + column / 2, half column % 2.
using Matrix = u16[8][8];

u32 fragment(const Matrix& matrix, int lane, bool transposed) {
  const int a = lane / 4, b = lane % 4 * 2;
  return transposed ? matrix[b][a] | static_cast<u32>(matrix[b + 1][a]) << 16
                    : matrix[a][b] | static_cast<u32>(matrix[a][b + 1]) << 16;
}

void load_matrices(Warp& warp, bool transposed) {
  for (int i = 0; i < 4; ++i) {
    Matrix matrix;
    for (int row = 0; row < 8; ++row) std::memcpy(matrix[row], warp.lane[i * 8 + row].in, 16);
    for (int lane = 0; lane < warp_size; ++lane)
      static_cast<u32*>(warp.lane[lane].out)[i] = fragment(matrix, lane, transposed);
  }
}

template <class Format> void multiply(Warp& warp) {
  Fragments f;
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto& in = *static_cast<const MmaOperands*>(warp.lane[lane].in);
    const auto* c = static_cast<const float*>(warp.lane[lane].out);
    const int g = lane / 4, t = lane % 4 * 2;
    std::memcpy(&f.a[g][t], in.a, 4);
    std::memcpy(&f.a[g + 8][t], in.a + 1, 4);
    std::memcpy(&f.a[g][t + 8], in.a + 2, 4);
    std::memcpy(&f.a[g + 8][t + 8], in.a + 3, 4);
    f.b[t][g] = static_cast<u16>(in.b0);
    f.b[t + 1][g] = static_cast<u16>(in.b0 >> 16);
    f.b[t + 8][g] = static_cast<u16>(in.b1);
    f.b[t + 9][g] = static_cast<u16>(in.b1 >> 16);
    std::memcpy(&f.c[g][t], c, 8);
    std::memcpy(&f.c[g + 8][t], c + 2, 8);
  }
  multiply_accumulate<Format>(f);
  for (int lane = 0; lane < warp_size; ++lane) {
    auto* d = static_cast<float*>(warp.lane[lane].out);
    const int g = lane / 4, t = lane % 4 * 2;
    std::memcpy(d, &f.c[g][t], 8);
    std::memcpy(d + 2, &f.c[g + 8][t], 8);
  }
}

}  // namespace

void act_sync_warp(Warp&) { know_at_sync_warp(worker()); }

void act_shfl(Warp& warp) {
  for (int lane = 0; lane < warp.n_lanes; ++lane) {
    const int source = warp.lane[lane].source;
    if (source >= warp.n_lanes) [[unlikely]]
      fail("shfl at " + place(warp.where) + " reads lane " + std::to_string(source) +
           " of a warp with " + std::to_string(warp.n_lanes) + " lanes");
    *static_cast<u64*>(warp.lane[lane].out) = warp.lane[source].value;
  }
}

void act_warp_any(Warp& warp) {
  u64 any = 0;
  for (int lane = 0; lane < warp.n_lanes; ++lane) any |= warp.lane[lane].value;
  for (int lane = 0; lane < warp.n_lanes; ++lane) *static_cast<u64*>(warp.lane[lane].out) = any;
}

void act_ldmatrix(Warp& warp) { load_matrices(warp, false); }
void act_ldmatrix_trans(Warp& warp) { load_matrices(warp, true); }

void store_matrices(u32 shared_row, const u32* r, Word word, Where where, void (*act)(Warp&)) {
  require_sm90(word, where);
  unsigned char* row = sm->shared + shared_row;
  check_shared(row, 16, 16, word, where);
  touch_stored(row, where);
  Lane& mine = my_lane();
  mine.in = r;
  mine.out = row;
  meet_whole_warp(word, where, act);
}

void act_stmatrix(Warp& warp) {
  for (int i = 0; i < 4; ++i) {
    Matrix matrix;
    for (int lane = 0; lane < warp_size; ++lane) {
      const u32 pair = static_cast<const u32*>(warp.lane[lane].in)[i];
      matrix[lane / 4][lane % 4 * 2] = static_cast<u16>(pair);
      matrix[lane / 4][lane % 4 * 2 + 1] = static_cast<u16>(pair >> 16);
    }
    for (int row = 0; row < 8; ++row) std::memcpy(warp.lane[i * 8 + row].out, matrix[row], 16);
  }
}

void act_movmatrix_trans(Warp& warp) {
  Matrix matrix;
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto pair = static_cast<u32>(warp.lane[lane].value);
    std::memcpy(&matrix[lane / 4][lane % 4 * 2], &pair, 4);
  }
  for (int lane = 0; lane < warp_size; ++lane)
    *static_cast<u64*>(warp.lane[lane].out) = fragment(matrix, lane, true);
}

void act_mma_f16(Warp& warp) { multiply<F16>(warp); }
void act_mma_bf16(Warp& warp) { multiply<Bf16>(warp); }

[[gnu::noinline, gnu::cold]] void report_part_of_warp(Word word, Where where) {
  fail(std::string(name_of(word)) + " at " + place(where) + " needs 32 lanes; this warp has " +
       std::to_string(my_warp().n_lanes));
}

}  // namespace lab::host
