// Two accesses to the same shared bytes, one of them a write, race unless something orders them:
// sync_block orders all threads, sync_warp the lanes of its warp. shfl, mma and the like exchange
// registers and order no memory. ldmatrix reads for the whole warp: once it is done, so is its
// reading, for every lane. The compiler announces every plain access by the calls that
// -fsanitize=thread makes it insert; the words announce their own.
#include "lab/host/shadow.hpp"

#ifdef LAB_CHECKS
#include <cstring>

#include "lab/host/memory_map.hpp"
#include "lab/host/report.hpp"

namespace lab::host {

constexpr std::size_t grain = 2;  // bytes: the smallest element that the vocabulary has

struct Place {
  Where where;                 // of a word
  const void* code = nullptr;  // of a plain access, otherwise
};

struct Writer {
  short thread;
  bool in_flight;   // by cp_async_16
  bool by_tma;
  u32 block, warp;  // epochs; block 0: nobody
  u32 async_fences;  // that the thread had passed
  Place place;
};

enum class Readers : unsigned char { one, lanes_of_a_warp, several_warps };

struct Reader {
  short thread, other;  // the last that read; one that read before, if there are several
  Readers readers;
  u32 block, warp;
  Place place;
};

struct Cell {
  Writer writer;
  Reader plain, by_word;
};

struct Shadow {
  std::vector<Cell> cells;
  u32 first_epoch;  // of this block
};

void prepare_shadow(Worker& m) {
  if (m.shadow == nullptr) m.shadow = new Shadow;
  const std::size_t n_cells = (m.shared_bytes + grain - 1) / grain;
  if (m.shadow->cells.size() < n_cells) m.shadow->cells.resize(n_cells);
}
void begin_shadow(Worker& m) { m.shadow->first_epoch = m.block_epoch; }
void free_shadow(Worker& m) { delete m.shadow; }

namespace {

// The running thread, and the epochs that its accesses are stamped with.
struct Me {
  short thread;
  u32 block, sync, meet, async_fences;
};

Me me(const Worker& m) {
  const Warp& warp = m.warps[m.thread / warp_size];
  return {static_cast<short>(m.thread), m.block_epoch, warp.sync_epoch, warp.meet_epoch,
          m.threads[m.thread].async_fences};
}
bool same_warp(int a, int b) { return a / warp_size == b / warp_size; }

std::string in_words(const Place& p) {
  return p.code == nullptr ? place(p.where) : code_place(p.code);
}
std::string byte_of(const Worker& m, const Cell& cell) {
  const auto index = static_cast<std::size_t>(&cell - m.shadow->cells.data());
  return " shared byte " + std::to_string(index * grain) + " at ";
}

[[noreturn]] [[gnu::noinline, gnu::cold]] void report_race(const char* verb, const Cell& cell,
                                                           Place here, int other,
                                                           const char* other_verb, Place there) {
  fail(std::string("race: ") + verb + byte_of(worker(), cell) + in_words(here) + "; thread " +
       std::to_string(other) + " " + other_verb + " it at " + in_words(there) +
       ", and no barrier lies between");
}
[[noreturn]] [[gnu::noinline, gnu::cold]] void report_in_flight(const char* verb, const Cell& cell,
                                                                Place here) {
  fail(verb + byte_of(worker(), cell) + in_words(here) + " while the cp_async_16 of thread " +
       std::to_string(cell.writer.thread) + " at " + in_words(cell.writer.place) +
       " is in flight: no cp_async_wait lies between");
}
[[noreturn]] [[gnu::noinline, gnu::cold]] void report_unwritten(const Cell& cell, Place here) {
  fail("reads" + byte_of(worker(), cell) + in_words(here) + ", which no thread wrote");
}

// Of a read by `epoch`'s kind against a write by me: the thread that races with it, or -1.
int racing_reader(const Reader& r, const Me& i, u32 epoch) {
  if (r.block != i.block) return -1;
  if (!same_warp(r.thread, i.thread)) return r.thread;
  if (r.readers == Readers::several_warps) return r.other;
  if (r.warp != epoch) return -1;
  if (r.thread != i.thread) return r.thread;
  return r.readers == Readers::lanes_of_a_warp ? r.other : -1;
}

void add_reader(Reader& r, const Me& i, u32 epoch, Place here) {
  if (r.block != i.block) {
    r.readers = Readers::one;
  } else if (!same_warp(r.thread, i.thread)) {
    r.readers = Readers::several_warps;
    r.other = r.thread;
  } else if (r.readers != Readers::several_warps) {
    if (r.warp != epoch) {
      r.readers = Readers::one;
    } else if (r.thread != i.thread) {
      r.readers = Readers::lanes_of_a_warp;
      r.other = r.thread;
    }
  }
  r.thread = i.thread;
  r.block = i.block;
  r.warp = epoch;
  r.place = here;
}

bool ordered(const Writer& w, const Me& i) {
  return w.by_tma || w.thread == i.thread || w.block != i.block ||
         (same_warp(w.thread, i.thread) && w.warp != i.sync);
}

void read_cell(const Worker& m, Cell& cell, const Me& i, bool by_word, Place here) {
  if (cell.writer.block < m.shadow->first_epoch) report_unwritten(cell, here);
  if (cell.writer.in_flight) report_in_flight("reads", cell, here);
  if (!ordered(cell.writer, i))
    report_race("reads", cell, here, cell.writer.thread, "wrote", cell.writer.place);
  if (by_word) add_reader(cell.by_word, i, i.meet, here);
  else add_reader(cell.plain, i, i.sync, here);
}

void write_cell(const Worker& m, Cell& cell, const Me& i, bool in_flight, Place here) {
  if (cell.writer.block >= m.shadow->first_epoch) {
    if (cell.writer.in_flight) report_in_flight("writes", cell, here);
    if (!ordered(cell.writer, i))
      report_race("writes", cell, here, cell.writer.thread, "wrote", cell.writer.place);
  }
  const int plain = racing_reader(cell.plain, i, i.sync);
  if (plain >= 0) report_race("writes", cell, here, plain, "read", cell.plain.place);
  const int by_word = racing_reader(cell.by_word, i, i.meet);
  if (by_word >= 0) report_race("writes", cell, here, by_word, "read", cell.by_word.place);
  cell.writer = {i.thread, in_flight, false, i.block, i.sync, i.async_fences, here};
}

// The cells of [p, p + bytes), which lie in shared memory.
template <class Visit> void each_cell(Worker& m, const void* p, std::size_t bytes, Visit visit) {
  const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - m.shared);
  for (std::size_t c = offset / grain; c <= (offset + bytes - 1) / grain; ++c)
    visit(m.shadow->cells[c]);
}

[[noreturn]] [[gnu::noinline, gnu::cold]] void report_bounds(const Worker& m, const void* p,
                                                             std::size_t bytes, const char* verb,
                                                             const void* code) {
  fail("shared memory out of bounds: " + std::string(verb) + " " + std::to_string(bytes) +
       " bytes at byte " + std::to_string(static_cast<const unsigned char*>(p) - m.shared) +
       " of " + std::to_string(m.shared_bytes) + " at " + code_place(code));
}

// Not shared memory. Of a tensor it would be held against no bounds.
void check_other(const Worker& m, const void* p, std::size_t bytes, bool write, const void* code) {
  const char* verb = write ? "writes" : "reads";
  if (in_arena(m, p)) report_bounds(m, p, bytes, verb, code);
  if (stack_owner(m, p) >= 0) return;
  for (int i = 0; i < m.launch->n_ranges; ++i) {
    const GlobalRange& r = m.launch->ranges[i];
    if (reinterpret_cast<u64>(p) - r.address < r.n_bytes)
      fail(std::string(verb) + " " + r.name + " without a word of the vocabulary at " +
           code_place(code) + ": use load_global, load_constant or store_global");
  }
}

void touch(const void* p, std::size_t bytes, bool write, const void* return_address) {
  if (sm == nullptr || sm->thread == scheduler || bytes == 0) return;
  Worker& m = worker();
  const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - m.shared);
  const void* code = static_cast<const char*>(return_address) - 1;  // inside the call, for its line
  if (offset >= m.shared_bytes || m.shared_bytes - offset < bytes)
    return check_other(m, p, bytes, write, code);
  const Me i = me(m);
  const Place here{{}, code};
  each_cell(m, p, bytes, [&](Cell& cell) {
    if (write) write_cell(m, cell, i, false, here);
    else read_cell(m, cell, i, false, here);
  });
}

}  // namespace

void touch_row(const void* row, Where where) {
  Worker& m = worker();
  const Me i = me(m);
  each_cell(m, row, 16, [&](Cell& cell) { read_cell(m, cell, i, true, {where}); });
}

void touch_stored(const void* row, Where where) {
  Worker& m = worker();
  const Me i = me(m);
  each_cell(m, row, 16, [&](Cell& cell) { write_cell(m, cell, i, false, {where}); });
}

void touch_async(const void* row, Where where) {
  Worker& m = worker();
  each_cell(m, row, 16, [&](Cell& cell) {
    const Writer& w = cell.writer;
    if (w.block >= m.shadow->first_epoch && !w.by_tma &&
        m.threads[w.thread].async_fences == w.async_fences)
      fail("wgmma at " + place(where) + " reads" + byte_of(m, cell) + in_words(w.place) +
           ", where thread " + std::to_string(w.thread) +
           " wrote it: no fence_async_shared of that thread lies between");
  });
}

void touch_issued(const void* dst, Where where) {
  Worker& m = worker();
  const Me i = me(m);
  each_cell(m, dst, 16, [&](Cell& cell) { write_cell(m, cell, i, true, {where}); });
}

void touch_landed(const void* dst) {
  Worker& m = worker();
  const Me i = me(m);
  each_cell(m, dst, 16, [&](Cell& cell) {
    cell.writer = {i.thread, false, false, i.block, i.sync, i.async_fences, cell.writer.place};
  });
}

void touch_by_tma(const void* dst, int thread, Where where) {
  Worker& m = worker();
  each_cell(m, dst, 16, [&](Cell& cell) {
    cell.writer = {static_cast<short>(thread), false, true, m.block_epoch, 0, 0, {where}};
  });
}

}  // namespace lab::host

// ---- what the compiler calls

#define LAB_CALLER __builtin_return_address(0)
#define LAB_PLAIN(bytes)                                                                     \
  LAB_EXPORT void __tsan_read##bytes(void* p) { touch(p, bytes, false, LAB_CALLER); }        \
  LAB_EXPORT void __tsan_write##bytes(void* p) { touch(p, bytes, true, LAB_CALLER); }
#define LAB_UNALIGNED(bytes)                                                                    \
  LAB_EXPORT void __tsan_unaligned_read##bytes(void* p) { touch(p, bytes, false, LAB_CALLER); } \
  LAB_EXPORT void __tsan_unaligned_write##bytes(void* p) { touch(p, bytes, true, LAB_CALLER); }

extern "C" {
using lab::host::touch;
LAB_PLAIN(1) LAB_PLAIN(2) LAB_PLAIN(4) LAB_PLAIN(8) LAB_PLAIN(16)
LAB_UNALIGNED(2) LAB_UNALIGNED(4) LAB_UNALIGNED(8) LAB_UNALIGNED(16)
LAB_EXPORT void __tsan_read_range(void* p, unsigned long n) { touch(p, n, false, LAB_CALLER); }
LAB_EXPORT void __tsan_write_range(void* p, unsigned long n) { touch(p, n, true, LAB_CALLER); }
LAB_EXPORT void* __tsan_memcpy(void* dst, const void* src, unsigned long n) {
  touch(src, n, false, LAB_CALLER);
  touch(dst, n, true, LAB_CALLER);
  return std::memcpy(dst, src, n);
}
LAB_EXPORT void* __tsan_memmove(void* dst, const void* src, unsigned long n) {
  touch(src, n, false, LAB_CALLER);
  touch(dst, n, true, LAB_CALLER);
  return std::memmove(dst, src, n);
}
LAB_EXPORT void* __tsan_memset(void* dst, int value, unsigned long n) {
  touch(dst, n, true, LAB_CALLER);
  return std::memset(dst, value, n);
}
LAB_EXPORT void __tsan_func_entry(void*) {}
LAB_EXPORT void __tsan_func_exit(void) {}
LAB_EXPORT void __tsan_init(void) {}
}
#endif
