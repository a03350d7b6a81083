// These are the operations that the tensor memory accelerator has been asked for and has not done.
#pragma once
#include <vector>

#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

// A Box is read from a TensorMap, innermost dimension first. A run of bytes is a box of one line.
struct Box {
  u64 address;
  int rank, element_bytes;
  bool swizzled;
  i64 shape[5], stride[5];  // elements, bytes
  int size[5];
  int at[5];
};

struct BoxLoad {
  Box box;
  u32 byte;     // its byte of shared memory
  int barrier;  // its number
  u32 phase;    // of the barrier, when it was issued
  short thread;
  Word word;
  Where where;
};

struct BoxStore {
  Box box;
  u32 byte;
  int group;
  bool read;  // a wait has ended after which shared memory may be written again
  Word word;
  Where where;
  std::vector<unsigned char> values;  // as they were when it was issued
};

// These are the additions of one thread, oldest first.
struct StoreQueue {
  std::vector<BoxStore> stores;
  int n_committed = 0;
  void clear() {
    stores.clear();
    n_committed = 0;
  }
};

struct Worker;
bool land_a_load(Worker& m);             // false: there is none
void end_stores(Worker& m, int thread);  // the thread returns
void check_loads(const Worker& m);       // the block ends: none is on its way

}  // namespace lab::host
