// The lab's exact random numbers (labkernels.kernels.random_inputs.ExactNormal), bit for bit:
// NumPy's PCG64, seeded by its SeedSequence.

const MASK_32 = 0xffffffffn;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

/** @param {number} a @param {number} b */
const times = (a, b) => Math.imul(a, b) >>> 0;

/** NumPy's SeedSequence(seed).generate_state(8). @param {number} seed  below 2^32 */
export function seed_words(seed) {
  let hash = 0x43b0d7e5;
  const hashed = (/** @type {number} */ value) => {
    value = (value ^ hash) >>> 0;
    hash = times(hash, 0x931e8875);
    value = times(value, hash);
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mixed = (/** @type {number} */ x, /** @type {number} */ y) => {
    const result = (times(0xca01f9dd, x) - times(0x4973f715, y)) >>> 0;
    return (result ^ (result >>> 16)) >>> 0;
  };
  const pool = [hashed(seed >>> 0), hashed(0), hashed(0), hashed(0)];
  for (let from = 0; from < 4; ++from)
    for (let to = 0; to < 4; ++to) if (from !== to) pool[to] = mixed(pool[to], hashed(pool[from]));
  hash = 0x8b51f9dd;
  return Array.from({ length: 8 }, (_, i) => {
    let value = (pool[i % 4] ^ hash) >>> 0;
    hash = times(hash, 0x58f38ded);
    value = times(value, hash);
    return (value ^ (value >>> 16)) >>> 0;
  });
}

/** NumPy's PCG64(seed): `next` gives the numbers of random_raw() one by one. */
export class Pcg64 {
  /** @param {number} seed */
  constructor(seed) {
    const words = seed_words(seed).map(BigInt);
    const [a, b, c, d] = [0, 2, 4, 6].map((i) => words[i] | (words[i + 1] << 32n));
    this.increment = BigInt.asUintN(128, (((c << 64n) | d) << 1n) | 1n);
    this.state = this.increment + ((a << 64n) | b);
    this.step();
  }

  step() {
    this.state = BigInt.asUintN(128, this.state * MULTIPLIER + this.increment);
  }

  next() {
    this.step();
    const value = BigInt.asUintN(64, (this.state >> 64n) ^ this.state),
      turn = this.state >> 122n;
    return BigInt.asUintN(64, (value >> turn) | (value << (64n - turn)));
  }

  /** Nearly normal numbers, exact in float32. @param {number} n */
  normal(n) {
    const numbers = new Float32Array(n);
    for (let i = 0; i < n; ++i) {
      const word = this.next(),
        low = Number(word & MASK_32),
        high = Number(word >> 32n);
      const sum = (low & 0xffff) + (low >>> 16) + (high & 0xffff) + (high >>> 16);
      numbers[i] = (sum - 2 * 0xffff) * 2 ** -15;
    }
    return numbers;
  }

  /** The numbers below n in random order. @param {number} n */
  order(n) {
    const words = Array.from({ length: n }, () => this.next());
    return words
      .map((_, i) => i)
      .sort((i, j) => (words[i] < words[j] ? -1 : words[i] > words[j] ? 1 : i - j));
  }
}
