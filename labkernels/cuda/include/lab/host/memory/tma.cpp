// The tensor memory accelerator moves boxes between global and shared memory.
#include "lab/host/memory/tma.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "lab/host/memory/memory.hpp"
#include "lab/host/machine/report.hpp"
#include "lab/host/races/shadow.hpp"
#include "lab/hopper/tma.cuh"

namespace lab::host {
namespace {

// cuda/gpu/tensor_map.py writes these words.
constexpr u64 map_mark = 0x54656e736f724d70;
enum MapWord {
  address_word,
  format_word,
  shape_word,
  stride_word = 7,
  box_word = 12,
  mark_word = 15
};

constexpr int chunk_bytes = 16, line_of_swizzle = 128;

Box read_map(const TensorMap& map, const Corner& corner, Word word, Where where) {
  if (map.words[mark_word] != map_mark)
    fail(host::at(word, where) + ": the map was not made by tensor_map, or for a GPU");
  const u64 format = map.words[format_word];
  Box box{};
  box.address = map.words[address_word];
  box.rank = static_cast<int>(format & 0xff);
  box.element_bytes = static_cast<int>(format >> 8 & 0xff);
  box.swizzled = true;
  if (box.rank != corner.rank)
    fail(host::at(word, where) + ": " + std::to_string(corner.rank) +
         " coordinates in a tensor of " + std::to_string(box.rank) + " dimensions");
  for (int i = 0; i < 5; ++i) {
    box.shape[i] = i < box.rank ? static_cast<i64>(map.words[shape_word + i]) : 1;
    box.stride[i] = i < box.rank ? static_cast<i64>(map.words[stride_word + i]) : 0;
    const u64 pair = map.words[box_word + i / 2];
    box.size[i] = i < box.rank ? static_cast<int>(pair >> i % 2 * 32 & 0xffffffff) : 1;
    box.at[i] = i < box.rank ? corner.at[i] : 0;
  }
  // With any other x, an H200 stops with an illegal instruction.
  if (static_cast<i64>(box.at[0]) * box.element_bytes % chunk_bytes != 0)
    fail(host::at(word, where) + ": x = " + std::to_string(box.at[0]) + " elements of " +
         std::to_string(box.element_bytes) + " bytes, allowed: multiples of 16 bytes");
  return box;
}

// Returns the box of n contiguous bytes, all of which exist.
Box run_of_bytes(const void* global, int n) {
  Box box{};
  box.address = reinterpret_cast<u64>(global);
  box.rank = 1;
  box.element_bytes = sizeof(float);
  for (int i = 0; i < 5; ++i) box.shape[i] = box.size[i] = 1;
  box.shape[0] = box.size[0] = n / box.element_bytes;
  return box;
}

std::size_t line_bytes(const Box& box) {
  return static_cast<std::size_t>(box.size[0]) * static_cast<std::size_t>(box.element_bytes);
}
std::size_t box_bytes(const Box& box) {
  std::size_t bytes = line_bytes(box);
  for (int i = 1; i < 5; ++i) bytes *= static_cast<std::size_t>(box.size[i]);
  return bytes;
}

// Calls visit(byte in the box, global address, bytes) for the part of each line that is in the
// tensor.
template <class Visit> void each_line(const Box& box, Visit visit) {
  const i64 first = std::clamp<i64>(-static_cast<i64>(box.at[0]), 0, box.size[0]);
  const i64 last = std::clamp<i64>(box.shape[0] - box.at[0], first, box.size[0]);
  const i64 inside = (last - first) * box.element_bytes;
  if (inside == 0) return;
  std::size_t line = 0;
  int i[5] = {};
  for (i[4] = 0; i[4] < box.size[4]; ++i[4])
    for (i[3] = 0; i[3] < box.size[3]; ++i[3])
      for (i[2] = 0; i[2] < box.size[2]; ++i[2])
        for (i[1] = 0; i[1] < box.size[1]; ++i[1], ++line) {
          u64 address = box.address + static_cast<u64>((box.at[0] + first) * box.element_bytes);
          bool exists = true;
          for (int d = 1; d < 5; ++d) {
            const i64 index = static_cast<i64>(box.at[d]) + i[d];
            exists &= index >= 0 && index < box.shape[d];
            address += static_cast<u64>(index * box.stride[d]);
          }
          if (exists)
            visit(line * line_bytes(box) + static_cast<std::size_t>(first * box.element_bytes),
                  reinterpret_cast<unsigned char*>(address), static_cast<std::size_t>(inside));
        }
}

// Calls visit(byte in the box, shared memory) for each 16 bytes of a box.
template <class Visit> void each_chunk(const Box& box, u32 byte, Visit visit) {
  const std::size_t n = box_bytes(box);
  for (std::size_t i = 0; i < n; i += chunk_bytes) {
    auto at = byte + static_cast<u32>(i);
    if (box.swizzled) at ^= (at >> 7 & 7) << 4;
    visit(i, sm->shared + at);
  }
}

std::vector<unsigned char> gather(const Box& box, u32 byte) {
  std::vector<unsigned char> values(box_bytes(box));
  each_chunk(box, byte, [&](std::size_t i, const unsigned char* at) {
    std::memcpy(values.data() + i, at, chunk_bytes);
  });
  return values;
}

// Tells the checker that the TMA reads the box.
void touch_box(const Box& box, u32 byte, Word word, Where where) {
  each_chunk(box, byte, [&](std::size_t, const unsigned char* at) { touch_sent(at, word, where); });
}

// Returns the byte of shared memory at which the box begins. Fails if the box may not begin there.
u32 shared_byte(const Box& box, const void* p, std::size_t alignment, Word word, Where where) {
  check_shared(p, box_bytes(box), 1, word, where);
  const auto byte = static_cast<u32>(static_cast<const unsigned char*>(p) - sm->shared);
  if (byte % alignment != 0)
    fail(host::at(word, where) + ": shared byte " + std::to_string(byte) +
         " is not a multiple of " + std::to_string(alignment));
  return byte;
}
constexpr std::size_t box_alignment = 128;  // also without swizzle

void check_lines(const Box& box, Access access, Word word, Where where) {
  each_line(box, [&](std::size_t, const unsigned char* global, std::size_t bytes) {
    check_global(global, bytes, 1, access, word, where);
  });
}

void load(const Box& box, void* dst, std::size_t alignment, Mbarrier& barrier, Word word,
          Where where) {
  Worker& m = worker();
  const MBarrier& b = find_barrier(&barrier, word, where);
  const u32 byte = shared_byte(box, dst, alignment, word, where);
  check_lines(box, Access::read, word, where);
  each_chunk(box, byte, [&](std::size_t, unsigned char* at) {
    touch_brought(at, {b.number, b.phase}, word, where);
    std::memset(at, poison, chunk_bytes);
  });
  m.loads.push_back({box, byte, b.number, b.phase, static_cast<short>(m.thread), word, where});
  trace(word, where);
}

void store(const Box& box, const void* src, std::size_t alignment, Word word, Where where) {
  StoreQueue& queue = worker().threads[sm->thread].stores;
  const u32 byte = shared_byte(box, src, alignment, word, where);
  check_lines(box, Access::write, word, where);
  touch_box(box, byte, word, where);
  queue.stores.push_back({box, byte, queue.n_committed, false, word, where, gather(box, byte)});
}

u32 bits_of_sum(float x, float y) {
  const float sum = x + y;
  return sum == sum ? as_bits(sum) : canonical_nan;
}
// Adds floats. Blocks on other host threads may add to the same place.
void add(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof(u32)) {
    u32 addend;
    std::memcpy(&addend, from + i, sizeof addend);
    std::atomic_ref<u32> target(*reinterpret_cast<u32*>(to + i));
    u32 before = target.load();
    while (!target.compare_exchange_weak(before, bits_of_sum(as_float(before), as_float(addend))))
      continue;
  }
}

void land(const BoxStore& store) {
  each_line(store.box, [&](std::size_t i, unsigned char* global, std::size_t bytes) {
    add(global, store.values.data() + i, bytes);
  });
}

void check_unchanged(BoxStore& store) {
  if (store.read) return;
  touch_box(store.box, store.byte, store.word, store.where);
  if (gather(store.box, store.byte) != store.values)
    fail("shared memory of the " + host::at(store.word, store.where) +
         " changed while it was read: no bulk_wait_read lies between");
  store.read = true;
}

void check_run(int bytes, const void* global, Word word, Where where) {
  if (bytes < chunk_bytes || bytes % chunk_bytes != 0)
    fail(host::at(word, where) + ": bytes = " + std::to_string(bytes) +
         ", allowed: multiples of 16");
  if (reinterpret_cast<u64>(global) % chunk_bytes != 0)
    report_misaligned(global, chunk_bytes, word, where);
}

}  // namespace

void tma_load(void* dst, const TensorMap& map, Mbarrier& b, const Corner& corner, Where where) {
  require_sm90(Word::tma_load, where);
  const Box box = read_map(map, corner, Word::tma_load, where);
  load(box, dst, box_alignment, b, Word::tma_load, where);
}

void bulk_load(void* dst, const void* src, int bytes, Mbarrier& b, Where where) {
  require_sm90(Word::bulk_load, where);
  check_run(bytes, src, Word::bulk_load, where);
  load(run_of_bytes(src, bytes), dst, chunk_bytes, b, Word::bulk_load, where);
}

void bulk_add(float* dst, const float* src, int bytes, Where where) {
  require_sm90(Word::bulk_add, where);
  check_run(bytes, dst, Word::bulk_add, where);
  store(run_of_bytes(dst, bytes), src, chunk_bytes, Word::bulk_add, where);
}

void bulk_commit() { ++worker().threads[sm->thread].stores.n_committed; }

void bulk_wait(int n_in_flight, bool only_read) {
  StoreQueue& queue = worker().threads[sm->thread].stores;
  const int done = queue.n_committed - n_in_flight;  // groups before this one
  for (BoxStore& store : queue.stores) {
    if (store.group >= done) break;
    check_unchanged(store);
    if (!only_read) land(store);
  }
  if (!only_read)
    std::erase_if(queue.stores, [&](const BoxStore& store) { return store.group < done; });
}

namespace {

// On the GPU loads land in any order. Here they land in the order of their issue, and in a checked
// build in an order that the block's random numbers choose.
std::ptrdiff_t next_to_land(Worker& m) {
#ifdef LAB_CHECKS
  m.dice = m.dice * 6364136223846793005u + 1442695040888963407u;
  return static_cast<std::ptrdiff_t>((m.dice >> 33) % m.loads.size());
#else
  (void)m;
  return 0;
#endif
}

}  // namespace

bool land_a_load(Worker& m) {
  if (m.loads.empty()) return false;
  const auto next = m.loads.begin() + next_to_land(m);
  const BoxLoad load = *next;
  m.loads.erase(next);
  std::vector<unsigned char> values(box_bytes(load.box));  // zeros
  each_line(load.box, [&](std::size_t i, const unsigned char* global, std::size_t bytes) {
    std::memcpy(values.data() + i, global, bytes);
  });
  each_chunk(load.box, load.byte, [&](std::size_t i, unsigned char* at) {
    std::memcpy(at, values.data() + i, chunk_bytes);
  });
  MBarrier& b = m.barriers.shared[static_cast<std::size_t>(load.barrier)];
  bring_bytes(b, static_cast<i64>(values.size()), load.phase, load.thread, load.word, load.where);
  return true;
}

void end_stores(Worker& m, int thread) {
  StoreQueue& queue = m.threads[thread].stores;
  for (const BoxStore& store : queue.stores)
    if (!store.read)
      fail("returns while the " + host::at(store.word, store.where) +
           " may still read shared memory: bulk_commit and bulk_wait_read<0> are missing");
  for (const BoxStore& store : queue.stores) land(store);
  queue.clear();
}

void check_loads(const Worker& m) {
  if (m.loads.empty()) return;
  const BoxLoad& load = m.loads.front();
  fail_block(this_block() + ", thread " + std::to_string(load.thread) +
             ": the block ends with the " + host::at(load.word, load.where) +
             " on its way: no thread waited for it");
}

}  // namespace lab::host
