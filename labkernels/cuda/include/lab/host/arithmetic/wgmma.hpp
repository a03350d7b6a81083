// This is what a warp has issued by wgmma and not yet waited for.
#pragma once
#include <vector>

#include "lab/host/machine/multiprocessor.hpp"

namespace lab::host {

// A d in flight: its values so far, and where the lanes will find them.
struct Accumulator {
  void* d[warp_size];
  std::vector<float> values;  // 16 x columns
  int columns, group;
  Where where;  // of the last wgmma that added to it
};

// The tiles of one wgmma, as they were when it was issued.
struct Operands {
  u64 a, b;
  bool a_major_mn, b_major_mn, a_in_registers;
  int first_row, columns, group;
  Where where;
  std::vector<unsigned char> bytes;
};

struct WgmmaQueue {
  std::vector<Accumulator> accumulators;
  std::vector<Operands> operands;
  int n_committed = 0, n_issued = 0;
  bool fenced = false;
  void clear() {
    accumulators.clear();
    operands.clear();
    n_committed = n_issued = 0;
    fenced = false;
  }
};

struct Worker;
void check_warpgroups(const Worker& m);  // the block ends: each warp took part in all

}  // namespace lab::host
