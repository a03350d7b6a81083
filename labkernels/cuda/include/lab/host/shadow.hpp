// The checker of shared memory (LAB_CHECKS): races, reads of what nobody wrote, bytes out of bounds.
#pragma once
#include "lab/host/multiprocessor.hpp"

namespace lab::host {

enum class CopyPhase : unsigned char { issued, landed };

#ifdef LAB_CHECKS
void clear_shadow();                        // a block begins
void touch_row(const void* row, Where where);  // 16 bytes read by a warp-wide word
void touch_copy(void* dst, CopyPhase phase, Where where);  // 16 bytes written by cp_async_16
#else
inline void clear_shadow() {}
inline void touch_row(const void*, Where) {}
inline void touch_copy(void*, CopyPhase, Where) {}
#endif

}  // namespace lab::host
