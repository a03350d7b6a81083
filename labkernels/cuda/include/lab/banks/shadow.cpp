// This file counts the turns of shared memory. In a build that counts, it takes the place of the
// checker (host/races/shadow.cpp): it is told of the same accesses, and checks none.
// The n-th accesses of a warp's lanes at one place of the code are one access of the warp. The 32
// banks serve it in phases of 8 lanes with 16 bytes each, 16 lanes with 8, or all 32; a phase takes
// a turn for each different word of its busiest bank. Accesses by wgmma and the TMA have no lanes
// and are left out.
#include "lab/host/races/shadow.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lab/host/machine/report.hpp"

namespace lab::host {

constexpr u32 n_banks = 32, bank_bytes = 4, widest = 16;

struct OfWarp {
  u32 lanes = 0, bytes = 0;   // one bit per lane; what each lane touches
  u32 first[warp_size] = {};  // byte of shared memory
};

// The accesses at one place of the code, in the block that runs.
struct Site {
  std::string place;
  std::vector<OfWarp> of_warp[max_warps];
  u32 times[max_threads] = {};
};

struct Turns { u64 taken = 0, least = 0; };

struct Shadow {
  Order order;
  std::unordered_map<u64, Site> sites;  // by code, or by source location
};

struct Count {
  std::mutex mutex;
  std::vector<Shadow*> shadows;        // of all workers
  std::map<std::string, Turns> turns;  // by place
  std::string told;
} the_count;

namespace {

// Returns the turns of the phase that begins at a lane.
u64 turns_of_phase(const OfWarp& access, u32 first_lane, u32 n_lanes) {
  std::vector<u32> words;
  for (u32 lane = first_lane; lane < first_lane + n_lanes; ++lane) {
    if ((access.lanes >> lane & 1) == 0) continue;
    const u32 from = access.first[lane], last = from + access.bytes - 1;
    for (u32 word = from / bank_bytes; word <= last / bank_bytes; ++word) words.push_back(word);
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  u64 in_bank[n_banks] = {};
  for (const u32 word : words) ++in_bank[word % n_banks];
  return *std::max_element(std::begin(in_bank), std::end(in_bank));
}

Turns turns_of(const OfWarp& access) {
  Turns turns;
  const u32 n_lanes = std::min(n_banks * bank_bytes / access.bytes, u32{warp_size});
  for (u32 lane = 0; lane < warp_size; lane += n_lanes) {
    const u64 taken = turns_of_phase(access, lane, n_lanes);
    turns.taken += taken;
    turns.least += taken != 0;
  }
  return turns;
}

// Adds the block that has run to the count. The caller holds the count's mutex.
void add_to_count(Shadow& s) {
  for (auto& [key, site] : s.sites) {
    Turns& sum = the_count.turns[site.place];
    for (std::vector<OfWarp>& accesses : site.of_warp) {
      for (const OfWarp& access : accesses) {
        const Turns turns = turns_of(access);
        sum.taken += turns.taken;
        sum.least += turns.least;
      }
      accesses.clear();
    }
    std::fill(std::begin(site.times), std::end(site.times), 0);
  }
}

template <class Name>
void note(const void* p, std::size_t bytes, u64 key, Name name) {
  Worker& m = worker();
  const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - m.shared);
  if (offset >= m.shared_bytes || m.shared_bytes - offset < bytes) return;
  Site& site = m.shadow->sites[key];
  if (site.place.empty()) site.place = name();
  auto& accesses = site.of_warp[m.thread / warp_size];
  const int lane = m.thread % warp_size;
  for (std::size_t done = 0; done < bytes; done += widest) {  // a large copy is several accesses
    const u32 n = site.times[m.thread]++;
    if (n >= accesses.size()) accesses.resize(n + 1);
    OfWarp& access = accesses[n];
    access.lanes |= 1u << lane;
    access.bytes = static_cast<u32>(std::min<std::size_t>(bytes - done, widest));
    access.first[lane] = static_cast<u32>(offset + done);
  }
}

void touch(const void* p, std::size_t bytes, bool write, const void* return_address) {
  if (sm == nullptr || sm->thread == scheduler || bytes == 0) return;
  const void* code = static_cast<const char*>(return_address) - 1;  // inside the call, for its line
  // A copy reads and writes at one place.
  const u64 key = reinterpret_cast<u64>(code) << 1 | u64{write};
  note(p, bytes, key, [code] { return code_place(code); });
}

void note_row(const void* row, Where where) {
  note(row, widest, std::bit_cast<u64>(where) << 1, [where] { return place(where); });
}

}  // namespace

Order& order_of(Worker& m) { return m.shadow->order; }

void prepare_shadow(Worker& m) {
  if (m.shadow == nullptr) {
    m.shadow = new Shadow;
    const std::lock_guard lock(the_count.mutex);
    the_count.shadows.push_back(m.shadow);
  }
  begin_launch(m.shadow->order, m.n_threads, m.n_warps);
}

void begin_shadow(Worker& m) {
  const std::lock_guard lock(the_count.mutex);
  add_to_count(*m.shadow);
  begin_block(m);
}

void free_shadow(Worker& m) {
  const std::lock_guard lock(the_count.mutex);
  std::erase(the_count.shadows, m.shadow);
  delete m.shadow;
}

void touch_row(const void* row, Where where) { note_row(row, where); }
void touch_stored(const void* row, Where where) { note_row(row, where); }
void touch_issued(const void* dst, Where where) { note_row(dst, where); }
void touch_landed(const void*) {}
void touch_wgmma(const void*, Where) {}
void touch_sent(const void*, Word, Where) {}
void touch_brought(const void*, BoxCopy, Word, Where) {}
void wgmma_issued(Worker&) {}
void wgmma_done(Worker&, std::size_t) {}

// Returns one line per place: the turns taken, the least possible, and the place. Then clears all
// counts.
extern "C" LAB_EXPORT const char* lab_turns() {
  const std::lock_guard lock(the_count.mutex);
  for (Shadow* s : the_count.shadows) {
    add_to_count(*s);
    s->sites.clear();
  }
  the_count.told.clear();
  for (const auto& [place, turns] : the_count.turns)
    the_count.told +=
        std::to_string(turns.taken) + " " + std::to_string(turns.least) + " " + place + "\n";
  the_count.turns.clear();
  return the_count.told.c_str();
}

}  // namespace lab::host

#include "lab/host/races/hooks.hpp"
