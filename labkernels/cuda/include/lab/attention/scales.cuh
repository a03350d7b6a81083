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

}  // namespace lab
