// labkernels.budget.roofline, and the bytes and FLOPs of a decode and of a causal prefill, with a
// window, a soft cap and sinks, formula by formula; a test compares them with Python's on random
// shapes.

/**
 * @typedef {{sm_count: number, dram_bytes_per_s: number, boost_clock_hz: number, fp32_flops:
 *   number, tensor_fp16_flops: number, mufu_per_clk_per_sm: number}} Rates  of a GPU
 * @typedef {{requests: number, tokens: number, keys: number, q_heads: number, kv_heads: number,
 *   head_dim: number, window: number | null, soft_cap: boolean, sinks: boolean}} Shape
 *   tokens: 1 is a decode, more are a causal prefill; window: keys before a token that it sees
 */

const ELEMENT_BYTES = 2, // of fp16 and bf16
  LSE_BYTES = 4,
  SINK_BYTES = 4;

/**
 * The keys that the query of a decode sees.
 * @param {Pick<Shape, "keys" | "window">} shape
 */
export const keys_seen = ({ keys, window }) => Math.min(keys, (window ?? keys) + 1);

/**
 * The sum of `count` numbers from `first` on, each clamped to the keys that exist.
 * @param {number} first @param {number} count @param {number} keys
 */
function sum_of_clamped(first, count, keys) {
  const clamped = (/** @type {number} */ n) => Math.max(0, Math.min(n, count)),
    below = clamped(-first),
    above = clamped(first + count - keys),
    inside = count - below - above;
  return above * keys + inside * (first + below) + (inside * (inside - 1)) / 2;
}

/**
 * Twice the pairs of a token and a key that it sees, as benchmarks count them.
 * @param {Shape} shape
 */
function doubled_pairs({ requests, tokens, keys, window }) {
  if (tokens === 1) return 2 * requests * keys_seen({ keys, window });
  const before = keys - tokens;
  if (window === null) return requests * tokens * (Math.max(0, before) + keys);
  const ends = sum_of_clamped(before + 1, tokens, keys);
  return 2 * requests * (ends - sum_of_clamped(before - window, tokens, keys));
}

/** Bytes, FLOPs, exponentials and group of a shape. @param {Shape} shape */
export function work_of(shape) {
  const { requests, tokens, keys, q_heads, kv_heads, head_dim, window } = shape,
    rows = requests * tokens * q_heads,
    first = window === null ? 0 : Math.max(0, Math.min(keys - tokens - window, keys)),
    kv_rows = requests * (keys - first) * kv_heads,
    bytes = 2 * (rows + kv_rows) * head_dim * ELEMENT_BYTES + rows * LSE_BYTES,
    pairs = doubled_pairs(shape);
  return {
    bytes: bytes + (shape.sinks ? q_heads * SINK_BYTES : 0),
    flops: 2 * pairs * q_heads * head_dim,
    exps: Math.floor((pairs * q_heads) / 2) * (shape.soft_cap ? 2 : 1), // a tanh counts as one
    group: q_heads / kv_heads,
  };
}

/**
 * Seconds of the memory traffic, the products and the exponentials, each alone at its peak.
 * @param {{bytes: number, flops: number, exps: number, group: number}} work @param {Rates} gpu
 * @param {{tensor_cores: boolean, mma_rows: number | null}} how  mma_rows: of a tile that the
 *   group alone fills
 */
export function least_time(work, gpu, { tensor_cores, mma_rows }) {
  const rate = tensor_cores ? gpu.tensor_fp16_flops : gpu.fp32_flops,
    tile = tensor_cores && mma_rows ? mma_rows : 1;
  const padded = Math.ceil(work.group / tile) * tile;
  const times = {
    memory: work.bytes / gpu.dram_bytes_per_s,
    math: (Math.floor(work.flops / work.group) * padded) / rate,
    exp: work.exps / (gpu.sm_count * gpu.mufu_per_clk_per_sm * gpu.boost_clock_hz),
  };
  const [bound, time] = Object.entries(times).reduce((most, one) =>
    one[1] > most[1] ? one : most,
  );
  return { times, bound, time };
}
