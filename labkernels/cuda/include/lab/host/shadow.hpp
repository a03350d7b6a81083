// The checker of shared memory (LAB_CHECKS): races, reads of what nobody wrote, exact bounds.
#pragma once
#include "lab/host/worker.hpp"

namespace lab::host {

#ifdef LAB_CHECKS
void prepare_shadow(Worker& m);                   // a launch begins
void begin_shadow(Worker& m);                     // a block begins
void free_shadow(Worker& m);
void touch_row(const void* row, Where where);     // 16 bytes are read by a warp-wide word
void touch_stored(const void* row, Where where);  // they are written by one
void touch_async(const void* row, Where where);   // they are read by wgmma, past the threads' view
void touch_issued(const void* dst, Where where);  // 16 bytes will be written by cp_async_16
void touch_landed(const void* dst);               // they are
void touch_by_tma(const void* dst, int thread, Where where);  // 16 bytes are written by the TMA
#else
inline void prepare_shadow(Worker&) {}
inline void begin_shadow(Worker&) {}
inline void free_shadow(Worker&) {}
inline void touch_row(const void*, Where) {}
inline void touch_stored(const void*, Where) {}
inline void touch_async(const void*, Where) {}
inline void touch_issued(const void*, Where) {}
inline void touch_landed(const void*) {}
inline void touch_by_tma(const void*, int, Where) {}
#endif

}  // namespace lab::host
