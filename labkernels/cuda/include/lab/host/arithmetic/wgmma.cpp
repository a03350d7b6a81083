// A wgmma reads descriptors as the hardware does, and delivers results when a thread waits for
// them.
#include "lab/host/arithmetic/wgmma.hpp"

#include <algorithm>
#include <cstring>

#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"
#include "lab/host/arithmetic/tensor_core.hpp"
#include "lab/hopper/wgmma.cuh"

namespace lab::host {
namespace {

constexpr int rows_of_warp = 16;
constexpr int bytes_of_k = 32;  // per instruction
using KBytes = unsigned char[bytes_of_k];

// A tile in shared memory: `n` rows (of a) or columns (of b), from `first` on.
struct Tile {
  u64 descriptor;
  bool major_mn;
  int first, n;
};

u32 field(u64 descriptor, int shift) {  // in bytes; a descriptor omits 4 bits
  return static_cast<u32>(descriptor >> shift & 0x3fff) << 4;
}

// Returns the byte of shared memory where 16 bytes lie: chunk number `chunk` of K in row i, or, in
// a tile of major MN, rows i to i + 7 at k = chunk.
u32 place_of(u64 descriptor, bool major_mn, u32 i, u32 chunk) {
  const u32 leading = field(descriptor, 16), stride = field(descriptor, 32);
  const u32 offset = major_mn
                         ? i / 8 % 8 * 16 + i / 64 * leading + chunk % 8 * 128 + chunk / 8 * stride
                         : i % 8 * 128 + i / 8 * stride + chunk * 16;
  const u32 at = field(descriptor, 0) + offset;
  return at ^ (at >> 7 & 7) << 4;
}

void check_descriptor(u64 descriptor, Where where) {
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
    fail("wgmma at " + place(where) +
         ": a descriptor without the swizzle of 128 bytes, or with a base offset");
}

template <bool touch>
[[gnu::always_inline]] inline const unsigned char* chunk_at(u32 at, Where where) {
  const unsigned char* p = sm->shared + at;
  if constexpr (touch) {
    check_shared(p, 16, 16, Word::wgmma, where);
    touch_wgmma(p, where);
  }
  return p;
}

// Reads the tile's 32 bytes of K, row by row. `touch` tells the checker of the reads.
template <bool touch> void gather(const Tile& tile, Where where, KBytes* out) {
  if (touch) check_descriptor(tile.descriptor, where);
  if (!tile.major_mn) {
    for (int i = 0; i < tile.n; ++i)
      for (u32 c = 0; c < 2; ++c) {
        const u32 at = place_of(tile.descriptor, false, static_cast<u32>(tile.first + i), c);
        std::memcpy(out[i] + c * 16, chunk_at<touch>(at, where), 16);
      }
    return;
  }
  for (u32 k = 0; k < 16; ++k)  // 16-bit elements
    for (int i = 0; i < tile.n; i += 8) {
      const u32 at = place_of(tile.descriptor, true, static_cast<u32>(tile.first + i), k);
      const unsigned char* from = chunk_at<touch>(at, where);
      for (int e = 0; e < 8; ++e) std::memcpy(out[i + e] + k * 2, from + e * 2, 2);
    }
}

// Computes c += a b for a warp's rows. a[16] and b[columns] are rows of 32 bytes of K.
template <class Format>
void multiply16(const KBytes* a, const KBytes* b, int columns, float* c) {
  Fragments f;
  for (int first = 0; first < columns; first += 8) {
    std::memcpy(f.a, a, sizeof f.a);
    for (int j = 0; j < 8; ++j)
      for (int k = 0; k < 16; ++k) std::memcpy(&f.b[k][j], b[first + j] + k * 2, 2);
    for (int row = 0; row < rows_of_warp; ++row)
      std::memcpy(f.c[row], c + row * columns + first, sizeof f.c[row]);
    multiply_accumulate<Format>(f);
    for (int row = 0; row < rows_of_warp; ++row)
      std::memcpy(c + row * columns + first, f.c[row], sizeof f.c[row]);
  }
}

void multiply(const WgmmaRequest& r, const KBytes* a, const KBytes* b, float* c) {
  if (r.input == Input::f16) return multiply16<F16>(a, b, r.columns, c);
  if (r.input == Input::bf16) return multiply16<Bf16>(a, b, r.columns, c);
  u32 row[bytes_of_k], column[bytes_of_k];
  for (int i = 0; i < rows_of_warp; ++i) {
    std::copy_n(a[i], bytes_of_k, row);
    for (int j = 0; j < r.columns; ++j) {
      std::copy_n(b[j], bytes_of_k, column);
      float& sum = c[i * r.columns + j];
      sum = dot(r.input, row, column, bytes_of_k, sum);
    }
  }
}

// Puts a lane's four registers of a's 16 rows in their places.
void place_rows(KBytes (&rows)[16], int lane, const u32* registers) {
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i)
    std::memcpy(rows[g + i % 2 * 8] + i / 2 * 16 + t * 4, registers + i, 4);
}

// Calls visit(value, index in the warp's 16 x columns results) for all that the lanes hold of d.
template <class Visit> void each_of_d(void* const* d, int columns, Visit visit) {
  for (int lane = 0; lane < warp_size; ++lane)
    for (int i = 0; i < columns / 2; ++i) {
      const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      visit(static_cast<float*>(d[lane])[i], row * columns + column);
    }
}

std::size_t held_bytes(const Accumulator& x) { return static_cast<std::size_t>(x.columns) * 2; }

// Returns the accumulator of the lanes' d: one in flight, or a new one with the values of d.
Accumulator& accumulator(WgmmaQueue& queue, const Warp& warp, const WgmmaRequest& r) {
  for (Accumulator& x : queue.accumulators)
    if (x.d[0] == warp.lane[0].out) return x;
  if (!queue.fenced) [[unlikely]]
    fail("wgmma at " + place(warp.where) +
         " without a wgmma_fence since d's registers could last be touched");
  Accumulator& x = queue.accumulators.emplace_back();
  x.columns = r.columns;
  x.values.resize(static_cast<std::size_t>(rows_of_warp * r.columns));
  for (int lane = 0; lane < warp_size; ++lane) x.d[lane] = warp.lane[lane].out;
  each_of_d(x.d, r.columns, [&](float& value, int i) { x.values[i] = value; });
  for (void* d : x.d) std::memset(d, poison, held_bytes(x));
  return x;
}

[[noreturn]] [[gnu::noinline, gnu::cold]] void report_changed(const char* what, Where where) {
  fail(std::string(what) + " of the wgmma at " + place(where) +
       " changed while it was in flight: no wgmma_wait lies between");
}

void deliver(const Accumulator& x) {
  for (const void* d : x.d) {
    const auto* bytes = static_cast<const unsigned char*>(d);
    if (!std::all_of(bytes, bytes + held_bytes(x), [](unsigned char b) { return b == poison; }))
      report_changed("d", x.where);
  }
  each_of_d(const_cast<void* const*>(x.d), x.columns,
            [&](float& value, int i) { value = x.values[static_cast<std::size_t>(i)]; });
}

bool same_request(const WgmmaRequest& x, const WgmmaRequest& y) {
  return x.a == y.a && x.b == y.b && x.accumulate == y.accumulate;
}

WgmmaQueue& queue_of_warp() { return worker().wgmma[sm->thread / warp_size]; }

void check_issue(const Warp& warp, const WgmmaRequest& r) {
#if LAB_ARCH < 90
  fail("wgmma at " + place(warp.where) + " needs sm_90");
#endif
  const int group_end = (sm->thread / warp_size / warps_of_group + 1) * warps_of_group * warp_size;
  if (group_end > worker().n_threads)
    fail("wgmma at " + place(warp.where) + " needs 128 threads; of this warpgroup there are " +
         std::to_string(worker().n_threads % (warps_of_group * warp_size)));
  for (const Lane& lane : warp.lane)
    if (!same_request(r, *static_cast<const WgmmaRequest*>(lane.in)))
      fail("wgmma at " + place(warp.where) + ": the lanes' descriptors differ");
}

}  // namespace

void act_wgmma(Warp& warp) {
  const auto& r = *static_cast<const WgmmaRequest*>(warp.lane[0].in);
  check_issue(warp, r);
  WgmmaQueue& queue = queue_of_warp();
  Accumulator& x = accumulator(queue, warp, r);
  x.group = queue.n_committed;
  x.where = warp.where;
  if (!r.accumulate) std::fill(x.values.begin(), x.values.end(), 0.f);

  const int first_row = sm->thread / warp_size % warps_of_group * rows_of_warp;
  ++queue.n_issued;
  queue.operands.push_back({r.a,
                            r.b,
                            r.a_major_mn,
                            r.b_major_mn,
                            r.rows != nullptr,
                            first_row,
                            r.columns,
                            queue.n_committed,
                            warp.where,
                            {}});
  Operands& read = queue.operands.back();
  read.bytes.resize(static_cast<std::size_t>((rows_of_warp + r.columns) * bytes_of_k));
  auto* a = reinterpret_cast<KBytes*>(read.bytes.data());
  KBytes* b = a + rows_of_warp;
  if (r.rows == nullptr) {
    gather<true>({r.a, r.a_major_mn, first_row, rows_of_warp}, warp.where, a);
  } else {
    for (int lane = 0; lane < warp_size; ++lane)
      place_rows(*reinterpret_cast<KBytes(*)[16]>(a), lane,
                 static_cast<const WgmmaRequest*>(warp.lane[lane].in)->rows);
  }
  gather<true>({r.b, r.b_major_mn, 0, r.columns}, warp.where, b);
  wgmma_issued(worker());
  multiply(r, a, b, x.values.data());
}

void fence_async_shared() {
  ++worker().threads[sm->thread].async_fences;
  know_at_fence(worker());
}

void act_wgmma_fence(Warp&) { queue_of_warp().fenced = true; }

void act_wgmma_commit(Warp&) {
  WgmmaQueue& queue = queue_of_warp();
  ++queue.n_committed;
}

void act_wgmma_wait(Warp& warp) {
  WgmmaQueue& queue = queue_of_warp();
  const int landed = queue.n_committed - warp.lane[0].source;  // groups before this one
  std::vector<unsigned char> now;
  for (const Operands& read : queue.operands) {
    if (read.group >= landed) continue;
    now.resize(read.bytes.size());
    auto* a = reinterpret_cast<KBytes*>(now.data());
    if (read.a_in_registers) std::memcpy(a, read.bytes.data(), rows_of_warp * bytes_of_k);
    else gather<false>({read.a, read.a_major_mn, read.first_row, rows_of_warp}, read.where, a);
    gather<false>({read.b, read.b_major_mn, 0, read.columns}, read.where, a + rows_of_warp);
    if (now != read.bytes) report_changed("a tile", read.where);
  }
  std::erase_if(queue.operands, [&](const Operands& read) { return read.group < landed; });
  wgmma_done(worker(), queue.operands.size());
  for (const Accumulator& x : queue.accumulators) {
    if (x.group >= landed) continue;
    deliver(x);
    queue.fenced = false;
  }
  std::erase_if(queue.accumulators, [&](const Accumulator& x) { return x.group < landed; });
}

void check_warpgroups(const Worker& m) {
  for (int first = 0; first + warps_of_group <= m.n_warps; first += warps_of_group) {
    std::string counts;
    bool equal = true;
    for (int w = first; w < first + warps_of_group; ++w) {
      counts += (w == first ? "" : ", ") + std::to_string(m.wgmma[w].n_issued);
      equal &= m.wgmma[w].n_issued == m.wgmma[first].n_issued;
    }
    if (!equal)
      fail_block(this_block() + ": warps " + std::to_string(first) + " to " +
                 std::to_string(first + warps_of_group - 1) + " of a warpgroup issued " + counts +
                 " wgmma, which takes all four");
  }
}

}  // namespace lab::host
