// These are the words of lab/hopper/tma.cuh on the CPU. A load fills its place with NaN when it is
// issued, and writes the box as late as possible: when no thread can run before the box is there.
// An addition reads its bytes at once. When a thread waits for the addition, the bytes are compared
// with shared memory, because the GPU may read them until then.
#pragma once

namespace lab::host {

// A box's place in its tensor, innermost coordinate first.
struct Corner {
  int at[5];
  int rank;
};

LAB_EXPORT void tma_load(void* dst, const TensorMap& map, Mbarrier& b, const Corner& corner,
                         Where where);
LAB_EXPORT void bulk_load(void* dst, const void* src, int bytes, Mbarrier& b, Where where);
LAB_EXPORT void bulk_add(float* dst, const float* src, int bytes, Where where);
LAB_EXPORT void bulk_commit();
LAB_EXPORT void bulk_wait(int n_in_flight, bool only_read);

}  // namespace lab::host

namespace lab {

LAB_DEVICE void prefetch_tensormap(const TensorMap&) {}
LAB_WORD void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y,
                       CacheHint = CacheHint::evict_normal, LAB_HERE) {
  host::tma_load(dst, map, b, {{x, y}, 2}, here);
}
LAB_WORD void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y, int z,
                       CacheHint = CacheHint::evict_normal, LAB_HERE) {
  host::tma_load(dst, map, b, {{x, y, z}, 3}, here);
}
LAB_WORD void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y, int z, int w,
                       CacheHint = CacheHint::evict_normal, LAB_HERE) {
  host::tma_load(dst, map, b, {{x, y, z, w}, 4}, here);
}
LAB_WORD void tma_load(void* dst, const TensorMap& map, Mbarrier& b, int x, int y, int z, int w,
                       int v, CacheHint = CacheHint::evict_normal, LAB_HERE) {
  host::tma_load(dst, map, b, {{x, y, z, w, v}, 5}, here);
}
LAB_WORD void bulk_load(void* dst, const void* src, int bytes, Mbarrier& b, LAB_HERE) {
  host::bulk_load(dst, src, bytes, b, here);
}
LAB_WORD void bulk_add(float* dst, const float* src, int bytes, LAB_HERE) {
  host::bulk_add(dst, src, bytes, here);
}
LAB_WORD void bulk_commit() { host::bulk_commit(); }
template <int N> LAB_WORD void bulk_wait_read() { host::bulk_wait(N, true); }
template <int N> LAB_WORD void bulk_wait() { host::bulk_wait(N, false); }

}  // namespace lab
