// A cache of 8 bits has codes, and scales: a number is its code's value times the scale.
#pragma once
#include "lab/core/formats.cuh"

namespace lab {

// kernels/program.py mirrors this struct.
struct CacheScales {
  const float *k_scale, *v_scale;  // [kv_heads]
  i64 k_scale_stride, v_scale_stride;
};
// The parameter of a kernel with such a cache is the plain kernel's, and these fields.
template <class Params> struct WithScales : Params { CacheScales scales; };

// Here each block of `keys` keys of a page has scales of its own.
struct BlockScales {
  const float *k_scale, *v_scale;  // [pages, blocks, kv_heads], with the same strides
  i64 stride_page, stride_block, stride_head;
  int keys;
  LAB_DEVICE i64 of_slot(int page, int token) const {
    return page * stride_page + token / keys * stride_block;
  }
};
template <class Params> struct WithBlockScales : Params { BlockScales block_scales; };

}  // namespace lab
