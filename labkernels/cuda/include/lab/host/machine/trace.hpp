// What a stepper sees of a run (LAB_TRACE): every word in which threads meet, once it has acted.
#pragma once
#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

#ifdef LAB_TRACE
void trace(Word word, Where where);
#else
inline void trace(Word, Where) {}
#endif

}  // namespace lab::host
