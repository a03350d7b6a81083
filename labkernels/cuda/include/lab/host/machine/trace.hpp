// With LAB_TRACE a stepper sees each word in which threads meet, once it has acted, and each load.
#pragma once
#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

#ifdef LAB_TRACE
void trace(Word word, Where where);
#else
inline void trace(Word, Where) {}
#endif

}  // namespace lab::host
