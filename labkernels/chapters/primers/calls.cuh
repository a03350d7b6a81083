// Calls one function of the small attention kernel in every lane, once per block. Barriers count
// themselves, behind the kernel's own shared memory.
#pragma once
#include "lab/attention/online_softmax.cuh"

namespace calls {
using namespace lab;

struct Params {
  const float* x;  // [calls, 2, 32]
  const int* n;    // [calls, 4]
  const int* page_table;
  double* y;  // [calls, 2, 128]
};

struct Barriers { int of_block, of_warp; };
constexpr int smem_before = 9344;  // bytes of the kernel's own shared memory

LAB_DEVICE Barriers& barriers() {
  return reinterpret_cast<Barriers*>(&shared_memory<char>() + smem_before)[thread_x()];
}
}  // namespace calls

namespace lab {
LAB_DEVICE void counted_sync_block() {
  ++calls::barriers().of_block;
  sync_block();
}
LAB_DEVICE void counted_sync_warp() {
  ++calls::barriers().of_warp;
  sync_warp();
}
}  // namespace lab

#define sync_block counted_sync_block
#define sync_warp counted_sync_warp
#include "attention.cuh"
#undef sync_block
#undef sync_warp

namespace calls {
using namespace small_attention;
static_assert(sizeof(Smem) == smem_before);

LAB_DEVICE float x(const Params& p, int i) {
  return load_constant(p.x + (block_x() * 2 + i) * 32 + thread_x());
}
LAB_DEVICE int n(const Params& p, int i) { return load_constant(p.n + block_x() * 4 + i); }
LAB_DEVICE void put(const Params& p, int i, double y) {
  store_global(p.y + (block_x() * 2 + i) * 128 + thread_x(), y);
}

LAB_KERNEL(32, 1) call_maximum(LAB_GRID_CONSTANT Params p) { put(p, 0, raised(x(p, 0), x(p, 1))); }

LAB_KERNEL(32, 1) call_update(LAB_GRID_CONSTANT Params p) {
  State state = {x(p, 0), thread_x() % 2 ? 1.f : 0.f, 2.f};
  const float weight = update(state, x(p, 1));
  put(p, 0, state.m);
  put(p, 1, state.l + state.o + weight);
}

LAB_KERNEL(32, 1) call_merge(LAB_GRID_CONSTANT Params p) {
  const State all = merge({x(p, 0), 0x1p31f, 0x1p32f}, {x(p, 1), 1.f, 2.f});
  put(p, 0, all.m);
  put(p, 1, all.o - all.l);
}

LAB_KERNEL(32, 1) call_log2(LAB_GRID_CONSTANT Params p) {
  const float y = in_log2_units(x(p, 0), x(p, 1));
  put(p, 0, y);
}

LAB_KERNEL(32, 1) call_mask(LAB_GRID_CONSTANT Params p) {
  const float y = masked(x(p, 0), n(p, 0), n(p, 1));
  put(p, 0, y);
}

LAB_KERNEL(32, 1) call_causal(LAB_GRID_CONSTANT Params p) {
  const int y = keys_seen(n(p, 0), n(p, 1), n(p, 2));
  put(p, 0, y);
}

LAB_KERNEL(32, 1) call_packing(LAB_GRID_CONSTANT Params p) {
  const Row row = row_of(n(p, 0), n(p, 1), n(p, 2));
  put(p, 0, row.token);
  put(p, 1, row.head);
}

LAB_KERNEL(32, 1) call_page(LAB_GRID_CONSTANT Params p) {
  small_attention::Params of = {};
  of.page_table = p.page_table;
  of.page_size = n(p, 2);
  of.kv_heads = n(p, 3);
  put(p, 0, static_cast<double>(offset_of(of, n(p, 0), n(p, 1))));
}

// A walk over n(0) keys, which are all the same one.
LAB_KERNEL(threads, 1) call_loop(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  barriers() = {0, 0};
  smem.q[thread_x() / 32][thread_x() % 32] = 0.f;
  lab::sync_block();
  small_attention::Params of = {};
  of.k_pool = of.v_pool = p.x;
  of.page_table = p.page_table;
  of.page_size = of.kv_heads = 1;
  State state = {lowest_score(), 0.f, 0.f};
  walk(smem, state, of, 0, n(p, 0), n(p, 0));
  put(p, 0, barriers().of_block);
  put(p, 1, barriers().of_warp);
}

}  // namespace calls
