// Two accesses to the same shared bytes, one of them a write, race unless a barrier makes one known
// to the other (order.hpp). shfl, mma and similar words exchange registers and order no memory.
// ldmatrix reads for the whole warp, and its reads are done when it returns in any lane; wgmma
// reads until a wait for it returns. The compiler announces every plain access by the calls that
// -fsanitize=thread makes it insert; the words announce their own.
#include "lab/host/races/shadow.hpp"

#ifdef LAB_CHECKS
#include <bit>
#include <unordered_map>

#include "lab/host/machine/report.hpp"
#include "lab/host/system/memory_map.hpp"

namespace lab::host {

constexpr std::size_t grain = 2;  // bytes: the smallest element that the vocabulary has

struct Place {
  Where where;                 // of a word
  const void* code = nullptr;  // of a plain access, otherwise
};
static_assert(sizeof(Where) == sizeof(const void*));

// Places have numbers, so that a cell holds only 16 bits for each place.
struct Places {
  std::vector<Place> all;
  std::unordered_map<const void*, u16> numbers;
  const void* last[256] = {};
  u16 last_number[256];

  u16 number(Place place) {
    const void* key = place.code != nullptr ? place.code : std::bit_cast<const void*>(place.where);
    const std::size_t slot = (reinterpret_cast<u64>(key) >> 2) % 256;
    if (last[slot] != key) {
      const auto [known, is_new] = numbers.try_emplace(key, static_cast<u16>(all.size()));
      if (is_new) all.push_back(place);
      last[slot] = key;
      last_number[slot] = known->second;
    }
    return last_number[slot];
  }
  void clear() {
    all.clear();
    numbers.clear();
    std::fill(std::begin(last), std::end(last), nullptr);
  }
};

enum class By : unsigned char { thread, cp_async_in_flight, tma };

struct Writer {
  u32 stamp;         // 0: no writer
  u32 phase;         // of the barrier, by the TMA
  u32 async_fences;  // fences that the thread had passed
  u16 thread, place;
  unsigned char barrier;
  By by;
  Word word;  // of the TMA
};

// The last read of a kind by a warp. Of plain reads it is the read of lane `thread`; earlier reads
// of other lanes are left out.
struct Read {
  u32 stamp;
  u16 thread, place;
};
enum Kind { plain, by_word, by_wgmma, n_kinds };

struct Cell {
  Writer writer;
  u32 readers;  // one bit per warp that has read it since
};

struct Shadow {
  std::vector<Cell> cells;
  std::vector<Read> reads;  // [cell][warp][kind]
  Order order;
  Places places;
};

Order& order_of(Worker& m) { return m.shadow->order; }

void prepare_shadow(Worker& m) {
  if (m.shadow == nullptr) m.shadow = new Shadow;
  Shadow& s = *m.shadow;
  const std::size_t n_cells = (m.shared_bytes + grain - 1) / grain;
  const std::size_t n_reads = n_cells * static_cast<std::size_t>(m.n_warps) * n_kinds;
  s.places.clear();
  // Stamps of an earlier launch stay valid, unless the warps' reads now lie elsewhere.
  if (s.order.n_warps != m.n_warps || s.order.now > 1u << 31) {
    s.cells.clear();
    s.reads.clear();
    s.order.now = 1;
  }
  // A launch that failed amid a warp's word or wgmma has left reads with the next word's stamp.
  for (int w = 0; w < m.n_warps; ++w) ++m.warps[w].meet_epoch, ++s.order.wgmma_issued[w];
  begin_launch(s.order, m.n_threads, m.n_warps);
  if (s.cells.size() < n_cells) s.cells.resize(n_cells);
  if (s.reads.size() < n_reads) s.reads.resize(n_reads);
}
void begin_shadow(Worker& m) { begin_block(m); }
void free_shadow(Worker& m) { delete m.shadow; }

namespace {

// This is the running thread, and what it knows.
struct Me {
  Worker& m;
  Order& order;
  int thread, warp;
  const u32* limits;
  u16 place;
  Place here;

  bool knows(int actor, u32 stamp) const { return order.knows(limits, actor, stamp); }
};

Me me(Worker& m, Place here) {
  Shadow& s = *m.shadow;
  const int t = m.thread;
  return {m, s.order, t, t / warp_size, s.order.of(t), s.places.number(here), here};
}

std::string in_words(const Place& p) {
  return p.code == nullptr ? place(p.where) : code_place(p.code);
}
std::string in_words(const Me& i, u16 place) { return in_words(i.m.shadow->places.all[place]); }

std::string byte_of(const Worker& m, const Cell& cell) {
  const auto index = static_cast<std::size_t>(&cell - m.shadow->cells.data());
  return " shared byte " + std::to_string(index * grain) + " at ";
}

[[noreturn]] [[gnu::noinline, gnu::cold]] void report_race(const char* verb, const Cell& cell,
                                                           const Me& i, int other,
                                                           const char* other_verb, u16 there) {
  fail(std::string("race: ") + verb + byte_of(i.m, cell) + in_words(i.here) + "; thread " +
       std::to_string(other) + " " + other_verb + " it at " + in_words(i, there) +
       ", and no barrier lies between");
}
[[noreturn]] [[gnu::noinline, gnu::cold]] void report_in_flight(const char* verb, const Cell& cell,
                                                                const Me& i) {
  const Writer& w = cell.writer;
  const bool by_tma = w.by == By::tma;
  fail(verb + byte_of(i.m, cell) + in_words(i.here) + " while the " +
       (by_tma ? name_of(w.word) : "cp_async_16") + " of thread " + std::to_string(w.thread) +
       " at " + in_words(i, w.place) + " is in flight: no " +
       (by_tma ? "mbarrier_wait" : "cp_async_wait") + " lies between");
}
[[noreturn]] [[gnu::noinline, gnu::cold]] void report_unwritten(const Cell& cell, const Me& i) {
  fail("reads" + byte_of(i.m, cell) + in_words(i.here) + ", which no thread wrote");
}
[[noreturn]] [[gnu::noinline, gnu::cold]] void report_unfenced(const char* verb, const Cell& cell,
                                                               const Me& i, Word word) {
  fail(std::string(name_of(word)) + " at " + in_words(i.here) + " " + verb + byte_of(i.m, cell) +
       in_words(i, cell.writer.place) + ", where thread " + std::to_string(cell.writer.thread) +
       " wrote it: " + i.order.missing_fence(cell.writer.thread, cell.writer.async_fences));
}

bool written(const Me& i, const Writer& w) { return w.stamp >= i.order.block_began; }

void check_writer(const Cell& cell, const Me& i, const char* verb) {
  const Writer& w = cell.writer;
  if (w.by == By::cp_async_in_flight) report_in_flight(verb, cell, i);
  if (w.by == By::tma) {
    if (!i.knows(i.order.copies_of(w.barrier), w.phase)) report_in_flight(verb, cell, i);
  } else if (w.thread != i.thread && !i.knows(w.thread, w.stamp)) {
    report_race(verb, cell, i, w.thread, "wrote", w.place);
  }
}

// The TMA and wgmma see a thread's store once that thread has passed a fence, of which the reader
// knows by a barrier. PTX asks for a fence anywhere between the store and the reader: the TMA also
// sees a store if the thread that asks for the copy knew of the store and then passed a fence. A
// wgmma does if all threads did, because all of the warpgroup ask for it.
void check_fence(const Cell& cell, const Me& i, const char* verb, Word word) {
  const Writer& w = cell.writer;
  if (w.by != By::thread || i.order.knows_fence(i.thread, w.thread, w.async_fences)) return;
  const bool all = word == Word::wgmma;
  for (int t = all ? i.warp * warp_size : i.thread, n = all ? warp_size : 1; n > 0; --n, ++t)
    if (w.stamp >= i.order.fenced[static_cast<std::size_t>(t * i.order.n_threads + w.thread)])
      report_unfenced(verb, cell, i, word);
}

Read* reads_of(const Me& i, const Cell& cell, int warp) {
  Shadow& s = *i.m.shadow;
  const auto index = static_cast<std::size_t>(&cell - s.cells.data());
  return &s.reads[(index * static_cast<std::size_t>(i.m.n_warps) + static_cast<std::size_t>(warp)) *
                  n_kinds];
}

u32 stamp_of(const Me& i, Kind kind) {
  if (kind == by_word) return i.m.warps[i.warp].meet_epoch + 1;
  if (kind == by_wgmma) return i.order.wgmma_issued[i.warp] + 1;
  return i.order.now;
}

void read_cell(Cell& cell, const Me& i, Kind kind) {
  if (!written(i, cell.writer)) report_unwritten(cell, i);
  check_writer(cell, i, "reads");
  cell.readers |= 1u << i.warp;
  reads_of(i, cell, i.warp)[kind] = {stamp_of(i, kind), static_cast<u16>(i.thread), i.place};
}

void check_readers(const Cell& cell, const Me& i) {
  for (u32 left = cell.readers; left != 0; left &= left - 1) {
    const int warp = std::countr_zero(left);
    const Read* reads = reads_of(i, cell, warp);
    const auto check = [&](const Read& read, bool known) {
      if (!known) report_race("writes", cell, i, read.thread, "read", read.place);
    };
    const bool mine = warp == i.warp;
    check(reads[plain],
          reads[plain].thread == i.thread || i.knows(reads[plain].thread, reads[plain].stamp));
    check(reads[by_word], mine ? reads[by_word].stamp <= i.m.warps[warp].meet_epoch
                               : i.knows(i.order.words_of(warp), reads[by_word].stamp));
    check(reads[by_wgmma], mine ? reads[by_wgmma].stamp <= i.order.wgmma_done[warp]
                                : i.knows(i.order.wgmmas_of(warp), reads[by_wgmma].stamp));
  }
}

// Checks a write to the cell, and then notes its writer.
void write_cell(Cell& cell, const Me& i, Writer writer) {
  if (written(i, cell.writer)) {
    check_writer(cell, i, "writes");
    if (writer.by == By::tma) check_fence(cell, i, "writes", writer.word);
  }
  check_readers(cell, i);
  cell.readers = 0;
  cell.writer = writer;
}

Writer writer_of(const Me& i, By by) {
  const u32 fences = i.m.threads[i.thread].async_fences;
  return {i.order.now, 0, fences, static_cast<u16>(i.thread), i.place, 0, by, Word::none};
}

// Visits the cells of [p, p + bytes), which lie in shared memory.
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

// Checks an access outside shared memory. A plain access to a tensor would escape the check of
// bounds, and is an error.
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
  const Me i = me(m, {{}, code});
  each_cell(m, p, bytes, [&](Cell& cell) {
    if (write) write_cell(cell, i, writer_of(i, By::thread));
    else read_cell(cell, i, plain);
  });
}

template <class Visit> void each_cell_of_row(const void* row, Where where, Visit visit) {
  Worker& m = worker();
  const Me i = me(m, {where});
  each_cell(m, row, 16, [&](Cell& cell) { visit(cell, i); });
}

}  // namespace

void touch_row(const void* row, Where where) {
  each_cell_of_row(row, where, [](Cell& cell, const Me& i) { read_cell(cell, i, by_word); });
}

void touch_stored(const void* row, Where where) {
  each_cell_of_row(row, where,
                   [](Cell& cell, const Me& i) { write_cell(cell, i, writer_of(i, By::thread)); });
}

void touch_wgmma(const void* row, Where where) {
  each_cell_of_row(row, where, [](Cell& cell, const Me& i) {
    read_cell(cell, i, by_wgmma);
    check_fence(cell, i, "reads", Word::wgmma);
  });
}

void touch_sent(const void* row, Word word, Where where) {
  each_cell_of_row(row, where, [word](Cell& cell, const Me& i) {
    read_cell(cell, i, plain);
    check_fence(cell, i, "reads", word);
  });
}

void touch_issued(const void* dst, Where where) {
  each_cell_of_row(dst, where, [](Cell& cell, const Me& i) {
    write_cell(cell, i, writer_of(i, By::cp_async_in_flight));
  });
}

void touch_landed(const void* dst) {
  Worker& m = worker();
  each_cell(m, dst, 16, [&](Cell& cell) {
    cell.writer.by = By::thread;
    cell.writer.stamp = m.shadow->order.now;
    cell.writer.async_fences = m.threads[m.thread].async_fences;
  });
}

void touch_brought(const void* dst, BoxCopy copy, Word word, Where where) {
  each_cell_of_row(dst, where, [&](Cell& cell, const Me& i) {
    Writer writer = writer_of(i, By::tma);
    writer.barrier = static_cast<unsigned char>(copy.barrier);
    writer.phase = copy.phase;
    writer.word = word;
    write_cell(cell, i, writer);
  });
}

// Returns the thread that wrote; from bit 16 on: 0 none, 1 a thread, 2 a copy in flight, 3 the TMA.
u32 seen_of(const Worker& m, std::size_t row) {
  const Shadow& s = *m.shadow;
  u32 seen = 0;
  for (std::size_t c = row * 16 / grain; c < (row + 1) * 16 / grain && seen == 0; ++c) {
    const Writer& w = s.cells[c].writer;
    if (w.stamp < s.order.block_began) continue;
    const bool on_its_way = w.by == By::tma && m.barriers.shared[w.barrier].phase == w.phase;
    const By by = on_its_way ? By::cp_async_in_flight : w.by;
    seen = w.thread | (static_cast<u32>(by) + 1) << 16;
  }
  return seen;
}

void wgmma_issued(Worker& m) { ++order_of(m).wgmma_issued[m.thread / warp_size]; }
void wgmma_done(Worker& m, std::size_t n_in_flight) {
  Order& order = order_of(m);
  const int w = m.thread / warp_size;
  order.wgmma_done[w] = order.wgmma_issued[w] - static_cast<u32>(n_in_flight);
}

}  // namespace lab::host

#include "lab/host/races/hooks.hpp"
#endif
