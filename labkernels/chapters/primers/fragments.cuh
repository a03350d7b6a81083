// These kernels show which lane holds which element of a matrix in registers and in shared memory.
#pragma once
#include "lab/ampere/shared_tile.cuh"

namespace fragments {
using namespace lab;

struct Params {
  const u16* a;  // 16-bit numbers in; each kernel says their shape
  const u16* b;
  float* out;
  u32* held;  // what each lane holds, or where it reads
  u32* touched;
};

// ---- swizzle: a tile of 16 rows of 64 numbers, eight chunks of 16 bytes in each row
struct Tile { alignas(128) u16 rows[16][64]; };

// [lab: swizzle]
// Returns which of its row's eight places chunk c takes.
LAB_DEVICE int place_of(int row, int c) { return c ^ (row & 7); }
// [/lab: swizzle]

// Passes the tile through shared memory: lanes store chunks, and ldmatrix reads 16 x 16 at a time.
// a [16, 64]; held [4 steps, 32 lanes, 4 registers]; touched [8, 32]: the byte addresses of the
// four stores and of the four reads.
LAB_KERNEL(32, 1) swizzled(LAB_GRID_CONSTANT Params p) {
  auto& tile = shared_memory<Tile>();
  const int lane = thread_x();
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8, c = lane % 8;
    u16* to = tile.rows[row] + place_of(row, c) * chunk_elements;
    const u32x4 chunk = load_constant(reinterpret_cast<const u32x4*>(p.a) + row * 8 + c);
    *reinterpret_cast<u32x4*>(to) = chunk;
    store_global(p.touched + i * 32 + lane, shared_address(to) - shared_address(&tile));
  }
  sync_warp();
  for (int step = 0; step < 4; ++step) {
    const int row = lane % 16, c = step * 2 + lane / 16;
    const u16* from = tile.rows[row] + place_of(row, c) * chunk_elements;
    u32 r[4];
    ldmatrix_x4(r, from);
    for (int i = 0; i < 4; ++i) store_global(p.held + (step * 32 + lane) * 4 + i, r[i]);
    store_global(p.touched + (4 + step) * 32 + lane, shared_address(from) - shared_address(&tile));
  }
}

// ---- mma: A 16 x 16, B 16 x 8
// [lab: rows]
// A lane gives ldmatrix_x4 the address of this row and chunk of eight numbers. The lane's four
// registers are then the A fragment of a tile of 16 x 16.
struct Source { int row, chunk; };
LAB_DEVICE Source source_of(int lane) { return {lane % 16, lane / 16}; }
// [/lab: rows]

// Loads the B fragment of `columns` [8, 16], whose rows are B's columns.
LAB_DEVICE void load_columns(u32 (&b)[2], const u16* columns) {
  const int g = thread_x() / 4, t = thread_x() % 4;
  for (int i = 0; i < 2; ++i)
    b[i] = load_constant(reinterpret_cast<const u32*>(columns) + g * 8 + i * 4 + t);
}

// out [16, 8] = a [16, 16] times b, whose columns are [8, 16]. held [32, 4]: A's fragment.
LAB_KERNEL(32, 1) product(LAB_GRID_CONSTANT Params p) {
  struct Small { alignas(16) u16 rows[16][16]; };
  auto& tile = shared_memory<Small>();
  const int lane = thread_x(), g = lane / 4, t = lane % 4;
  const u32x4 chunk = load_constant(reinterpret_cast<const u32x4*>(p.a) + lane);
  *reinterpret_cast<u32x4*>(tile.rows[lane / 2] + lane % 2 * 8) = chunk;
  sync_warp();
  u32 a[4], b[2];
  const Source from = source_of(lane);
  ldmatrix_x4(a, tile.rows[from.row] + from.chunk * 8);
  load_columns(b, p.b);
  float d[4] = {};
  mma_m16n8k16<f16>(d, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) {
    store_global(p.out + (g + i / 2 * 8) * 8 + 2 * t + i % 2, d[i]);
    store_global(p.held + lane * 4 + i, a[i]);
  }
}

// [lab: pack]
// Makes the A fragment of P [16 rows, 16 keys] from the accumulators of S: s[0] has keys 0 to 7,
// s[1] keys 8 to 15. A lane holds columns 2 t and 2 t + 1 of rows g and g + 8 of each.
LAB_DEVICE void fragment_of_p(u32 (&a)[4], const float (&s)[2][4]) {
  a[0] = pack2<f16>(s[0][0], s[0][1]);
  a[1] = pack2<f16>(s[0][2], s[0][3]);
  a[2] = pack2<f16>(s[1][0], s[1][1]);
  a[3] = pack2<f16>(s[1][2], s[1][3]);
}
// [/lab: pack]

// out [16, 8] = P V with P = a [16, 16] keys^T. b: the 16 keys [16, 16], then V^T [8, 16]. P is
// not normalised, as in a step of attention.
LAB_KERNEL(32, 1) two_products(LAB_GRID_CONSTANT Params p) {
  const int lane = thread_x(), g = lane / 4, t = lane % 4;
  const u32* rows = reinterpret_cast<const u32*>(p.a);
  u32 a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = load_constant(rows + (g + i % 2 * 8) * 8 + i / 2 * 4 + t);
  float s[2][4] = {}, o[4] = {};
  for (int half = 0; half < 2; ++half) {
    load_columns(b, p.b + half * 8 * 16);
    mma_m16n8k16<f16>(s[half], a, b[0], b[1]);
  }
  fragment_of_p(a, s);
  load_columns(b, p.b + 16 * 16);
  mma_m16n8k16<f16>(o, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) {
    store_global(p.out + (g + i / 2 * 8) * 8 + 2 * t + i % 2, o[i]);
    store_global(p.held + lane * 4 + i, a[i]);
  }
}

}  // namespace fragments
