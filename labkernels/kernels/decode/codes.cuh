// Fragments of a cache of 8 bits. ldmatrix moves 16 bits at a time, here two codes, so that a lane
// gets channels 4t to 4t + 3 of each 16 where the mma has k = 2t, 2t + 1, 2t + 8 and 2t + 9. Q gets
// the same order. A tensor core that adds all 16 products at once (sm_90) then gives the bits that
// 16-bit K would give; one that adds 8 and 8 (sm_80, sm_89) adds other eights.
#pragma once
#include "lab/ampere/shared_tile.cuh"
#include "lab/core/formats.cuh"

namespace lab {

// A word has the codes of a lane for 8 keys by 16 channels: word 2 i + j of these is of keys 8 i to
// 8 i + 7 from `key` on, and of channels 16 (d + j) to 16 (d + j) + 15.
template <class Code, int Keys, int D>
LAB_DEVICE void load_codes(u32 (&codes)[4], Code (&tile)[Keys][D], int key, int d) {
  const int lane = thread_x() & 31, row = key + (lane & 7) + (lane >> 4) * 8;
  ldmatrix_x4(codes, chunk<D>(tile, row, d + ((lane >> 3) & 1)));
}
// The same, transposed: lane 4 g + t has keys 2t and 2t + 1, and of both channels 2g and 2g + 1.
template <class Code, int Keys, int D>
LAB_DEVICE void load_codes_trans(u32 (&codes)[4], Code (&tile)[Keys][D], int key, int d) {
  const int lane = thread_x() & 31, row = key + (lane & 7) + (lane >> 4) * 8;
  ldmatrix_x4_trans(codes, chunk<D>(tile, row, d + ((lane >> 3) & 1)));
}
// Gives a transposed word as two pairs of keys: of the even channel, and of the odd one.
template <class T, class Code> LAB_DEVICE void widen_keys(u32& even, u32& odd, u32 codes) {
  widen<T, Code>(even, odd, select_bytes(codes, 0, 0x3120));
}

// Loads K of 16 keys and 16 channels, the `d`-th. codes: of 32 channels. Next: the word beside k[0]
// that has the upper channels of the same keys; k[3 - Next] has the lower ones of the other keys.
template <class T, int Next, class Code, int Keys, int D>
LAB_DEVICE void load_narrow_k(u32 (&k)[4], u32 (&codes)[4], Code (&tile)[Keys][D], int key, int d) {
  if (d % 2 == 0) load_codes(codes, tile, key, d);
  widen<T, Code>(k[0], k[Next], codes[d % 2]);
  widen<T, Code>(k[3 - Next], k[3], codes[2 + d % 2]);
}
// Does the same for V, whose channels are the even ones, then the odd ones.
template <class T, int Next, class Code, int Keys, int D>
LAB_DEVICE void load_narrow_v(u32 (&v)[4], u32 (&codes)[4], Code (&tile)[Keys][D], int key, int d) {
  if (d % 2 == 0) load_codes_trans(codes, tile, key, d);
  widen_keys<T, Code>(v[0], v[Next], codes[d % 2]);
  widen_keys<T, Code>(v[3 - Next], v[3], codes[2 + d % 2]);
}

// Returns the lane's channels 16 d + 4t to 16 d + 4t + 3 of a row of Q.
template <class T, int Rows, int D>
LAB_DEVICE u32x2 four_channels(T (&q)[Rows][D], int row, int d) {
  const int t = thread_x() & 3;
  return *reinterpret_cast<const u32x2*>(chunk<D>(q, row, 2 * d + t / 2) + t % 2 * 4);
}

}  // namespace lab
