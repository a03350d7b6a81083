// Where a backward pass puts the rows of each request in its workspace.
#pragma once
#include "backward/problem.cuh"

namespace workspace {
using namespace lab;

struct Params {
  const void* in;  // int [requests + 1]: cu_seqlens_q
  void* out;       // i64 [requests]
  int n;
};

LAB_KERNEL(64, 1) first_rows(LAB_GRID_CONSTANT Params p) {
  BackwardParams of{};
  of.cu_seqlens_q = of.cu_seqlens_k = static_cast<const int*>(p.in);
  if (thread_x() < p.n)
    store_global(static_cast<i64*>(p.out) + thread_x(),
                 backward_request(of, thread_x()).first_padded);
}

}  // namespace workspace
