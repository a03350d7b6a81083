// The tiles of a kernel have D channels. A head of the caller's tensors may have fewer, which are
// known at compile time: zeros then fill the last columns of its tiles, and its output has none of
// them.
#pragma once
#include "lab/core/ptx.cuh"

namespace lab {

#ifdef LAB_CHANNELS
template <int D> constexpr int head_channels = LAB_CHANNELS;  // a multiple of 16
#else
template <int D> constexpr int head_channels = D;
#endif

// Returns whether the head has the column of a tile.
template <int D> LAB_DEVICE bool in_head(int column) {
  if constexpr (head_channels<D> == D) return true;
  else return column < head_channels<D>;
}

}  // namespace lab
