// labkernels.budget.roofline, and the bytes and FLOPs of a decode and of a causal prefill, formula
// by formula; a test compares them with Python's on random shapes.

/**
 * @typedef {{sm_count: number, dram_bytes_per_s: number, boost_clock_hz: number, fp32_flops:
 *   number, tensor_fp16_flops: number, mufu_per_clk_per_sm: number}} Rates  of a GPU
 * @typedef {{requests: number, tokens: number, keys: number, q_heads: number, kv_heads: number,
 *   head_dim: number}} Shape  tokens: 1 is a decode, more are a causal prefill
 */

const ELEMENT_BYTES = 2, // of fp16 and bf16
  LSE_BYTES = 4;

/** Bytes, FLOPs, exponentials and group of a shape. @param {Shape} shape */
export function work_of({ requests, tokens, keys, q_heads, kv_heads, head_dim }) {
  const rows = requests * tokens * q_heads;
  const bytes =
    2 * (rows + requests * keys * kv_heads) * head_dim * ELEMENT_BYTES + rows * LSE_BYTES;
  const doubled_pairs =
    tokens === 1 ? 2 * requests * keys : requests * tokens * (Math.max(0, keys - tokens) + keys);
  return {
    bytes,
    flops: 2 * doubled_pairs * q_heads * head_dim,
    exps: Math.floor((doubled_pairs * q_heads) / 2),
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
