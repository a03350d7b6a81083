// This file reports an error, and makes a fiber leave a block that cannot continue.
#pragma once
#include <string>

#include "lab/host/machine/worker.hpp"

namespace lab::host {

std::string place(Where where);                   // "decode/mma/kernel.cuh:31"
std::string code_place(const void* instruction);  // for build.py to look up: "<<library+0x12ab>>"
std::string hexadecimal(const void* address);     // "0x7f00"
std::string this_block();                         // "block (0, 1, 2)"
std::string this_thread();                        // "block (0, 1, 2), thread 5"

// Ends the block with the error "block (0, 1, 2), thread 5: what". A fiber calls this and never
// returns: objects on its stack are not destroyed, so an error may leak a string.
[[noreturn]] void fail(std::string&& what);
[[noreturn]] void fail_block(std::string&& message);  // the whole message
[[noreturn]] void leave_block();                      // its error is reported already

// Ends the block once an earlier block has failed: its results are not used, and what it waits for
// may never come. Words that wait or synchronize call this.
inline void leave_if_pointless() {
  const Worker& m = worker();
  if (m.index > m.failed_block->load(std::memory_order_relaxed)) [[unlikely]]
    fail_block("is left, since an earlier block has failed");
}

}  // namespace lab::host
