// A kernel that compiles only if a tile is as roomy as its ledger says.
#pragma once
#include "prefill_wgmma/tile.cuh"

namespace roomy {
template <class Tile, bool Expected> LAB_KERNEL(32, 1) check() {
  static_assert(Tile::is_roomy == Expected, "the ledger's steps of P are the tile's");
}
}  // namespace roomy
