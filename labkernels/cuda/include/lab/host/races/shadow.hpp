// The checker of shared memory (LAB_CHECKS) finds races, reads of unwritten bytes, and accesses out
// of bounds.
#pragma once
#include "lab/host/races/order.hpp"
#include "lab/host/machine/worker.hpp"

namespace lab::host {

// A load of the TMA ends with this phase of this mbarrier.
struct BoxCopy {
  int barrier;
  u32 phase;
};

#ifdef LAB_CHECKS
void prepare_shadow(Worker& m);  // a launch begins
void begin_shadow(Worker& m);    // a block begins
void free_shadow(Worker& m);
Order& order_of(Worker& m);
// Each tells the checker what happens to the 16 bytes at its first argument.
void touch_row(const void* row, Where where);     // a warp-wide word reads them
void touch_stored(const void* row, Where where);  // a warp-wide word writes them
void touch_wgmma(const void* row, Where where);   // wgmma reads them, past the threads' view
void touch_sent(const void* row, Word word, Where where);  // the TMA reads them
void touch_issued(const void* dst, Where where);           // cp_async_16 will write them
void touch_landed(const void* dst);                        // cp_async_16 has written them
void touch_brought(const void* dst, BoxCopy copy, Word word, Where where);  // the TMA writes them
u32 seen_of(const Worker& m, std::size_t row);        // who wrote 16 bytes, as a stepper shows it
void wgmma_issued(Worker& m);                         // the running thread's warp has issued one
void wgmma_done(Worker& m, std::size_t n_in_flight);  // all but its last n_in_flight are done
#else
inline void prepare_shadow(Worker&) {}
inline void begin_shadow(Worker&) {}
inline void free_shadow(Worker&) {}
inline void touch_row(const void*, Where) {}
inline void touch_stored(const void*, Where) {}
inline void touch_wgmma(const void*, Where) {}
inline void touch_sent(const void*, Word, Where) {}
inline void touch_issued(const void*, Where) {}
inline void touch_landed(const void*) {}
inline void touch_brought(const void*, BoxCopy, Word, Where) {}
inline void wgmma_issued(Worker&) {}
inline void wgmma_done(Worker&, std::size_t) {}
#endif

}  // namespace lab::host
