// The right output in float64, and how far rounding alone can move a right kernel's output: the
// out_bound of labkernels.numerics.error.bounds, formula by formula.

/**
 * @typedef {import("./launches.mjs").Attention} Attention
 * @typedef {{p_parts: number, p_error: number, p_underflow: number, exp2_error: number,
 *   tensor_cores: boolean, chunk: number, step_error: number, rounded_denominator: boolean,
 *   splits: number, out_roundoff: number, out_subnormal: number}} Rounding
 * @typedef {{out: Float64Array, bound: Float64Array}} Truth  [token, head, channel]
 */

const LOG2_E = Math.LOG2E,
  U32 = 2 ** -24;
const SMALLEST_STEP = 16,
  WARPS = 8,
  ARGUMENT_ROUNDINGS = 12,
  LARGEST_EXPONENT_ERROR = 100;
const NO_BOUND = 1e100;

/** Growth of 1 / (1 - error) over 1. @param {number} error */
const room = (error) => (error >= 1 ? NO_BOUND : error / (1 - error));

/** @param {Rounding} how @param {number} terms */
function product_error(how, terms) {
  return how.tensor_cores ? Math.ceil(terms / how.chunk) * how.step_error : (terms + 1) * U32;
}

/**
 * Where the key of a request lies in k and v, in tokens.
 * @param {Attention} a @param {Int32Array | null} table @param {number} columns
 */
function places_of_keys(a, table, columns) {
  let first = 0;
  return a.kv_lens.map((n, request) => {
    const begin = first;
    first += n;
    if (table === null) return Int32Array.from({ length: n }, (_, key) => begin + key);
    return Int32Array.from(
      { length: n },
      (_, key) =>
        table[request * columns + Math.floor(key / a.page_size)] * a.page_size +
        (key % a.page_size),
    );
  });
}

/**
 * @param {Attention} a
 * @param {Rounding} how
 * @param {{q: Float64Array, k: Float64Array, v: Float64Array, table: Int32Array | null}} given
 * @returns {Truth}
 */
export function truth(a, how, { q, k, v, table }) {
  const tokens = a.q_lens.reduce((x, y) => x + y, 0),
    group = a.q_heads / a.kv_heads;
  const columns = table === null ? 0 : table.length / a.kv_lens.length;
  const places = places_of_keys(a, table, columns);
  const out = new Float64Array(tokens * a.q_heads * a.head_dim_v),
    bound = out.slice();
  let token = 0;
  a.q_lens.forEach((length, request) => {
    for (let row = 0; row < length; ++row, ++token) {
      const seen = a.causal
        ? Math.max(0, a.kv_lens[request] - length + row + 1)
        : a.kv_lens[request];
      const keys = places[request].subarray(0, seen);
      for (let head = 0; head < a.q_heads; ++head) {
        const at = token * a.q_heads + head,
          kv_head = Math.floor(head / group);
        const query = q.subarray(at * a.head_dim, (at + 1) * a.head_dim);
        const end = (at + 1) * a.head_dim_v,
          begin = at * a.head_dim_v;
        row_truth(
          a,
          how,
          { query, keys, k, v, kv_head },
          out.subarray(begin, end),
          bound.subarray(begin, end),
        );
      }
    }
  });
  return { out, bound };
}

/**
 * One row of the output and of its bound.
 * @param {Attention} a @param {Rounding} how
 * @param {{query: Float64Array, keys: Int32Array, k: Float64Array, v: Float64Array,
 *   kv_head: number}} given
 * @param {Float64Array} out @param {Float64Array} bound
 */
function row_truth(a, how, { query, keys, k, v, kv_head }, out, bound) {
  const n = keys.length,
    scale = a.scale * LOG2_E,
    dims = a.head_dim,
    channels = a.head_dim_v;
  if (n === 0) return;
  const scores = new Float64Array(n),
    products = new Float64Array(n);
  for (let j = 0; j < n; ++j) {
    const at = (keys[j] * a.kv_heads + kv_head) * dims;
    for (let d = 0; d < dims; ++d) {
      const product = query[d] * scale * k[at + d];
      scores[j] += product;
      products[j] += Math.abs(product);
    }
  }
  const top = scores.reduce((x, y) => Math.max(x, y), -Infinity);
  const largest = scores.reduce((x, y) => Math.max(x, Math.abs(y)), 0);
  const rescales = Math.ceil(n / SMALLEST_STEP) + 2;
  const common =
    (rescales + 1) * (how.exp2_error + U32) + (ARGUMENT_ROUNDINGS * U32 * largest) / LOG2_E;
  const per_product = product_error(how, dims) / LOG2_E;
  const sum = {
    o: new Float64Array(channels),
    a: new Float64Array(channels),
    a_error: new Float64Array(channels),
    v: new Float64Array(channels),
    weight_error: 0,
    l: 0,
  };
  for (let j = 0; j < n; ++j) {
    const p = 2 ** (scores[j] - top);
    const error =
      p * Math.expm1(Math.min(per_product * products[j] + common, LARGEST_EXPONENT_ERROR));
    const at = (keys[j] * a.kv_heads + kv_head) * channels;
    sum.l += p;
    sum.weight_error += error;
    for (let c = 0; c < channels; ++c) {
      const value = v[at + c],
        size = Math.abs(value);
      sum.o[c] += p * value;
      sum.a[c] += p * size;
      sum.a_error[c] += error * size;
      sum.v[c] += size;
    }
  }
  for (let c = 0; c < channels; ++c) {
    out[c] = sum.o[c] / sum.l;
    bound[c] = element_bound(how, n, rescales, out[c], {
      weight_error: sum.weight_error / sum.l,
      a: sum.a[c] / sum.l,
      a_error: sum.a_error[c] / sum.l,
      v: sum.v[c],
    });
  }
}

/**
 * @param {Rounding} how @param {number} n @param {number} rescales @param {number} o
 * @param {{weight_error: number, a: number, a_error: number, v: number}} sums
 */
function element_bound(how, n, rescales, o, sums) {
  const joins = rescales + WARPS + how.splits + 4;
  const value_error = how.p_parts * product_error(how, n) + joins * U32;
  const sum_error =
    (n + joins) * U32 + (how.rounded_denominator ? how.p_error + n * how.p_underflow : 0);
  const grown = 1 + room(sums.weight_error);
  const weights = (sums.a_error + Math.abs(o) * sums.weight_error) * grown;
  const factor = (1 + how.p_error) * (1 + value_error);
  const theta = factor * (1 + room(sum_error)) - 1;
  const underflow = (how.p_underflow * sums.v + 2 ** -125 * n) * factor;
  const internal =
    weights + theta * (sums.a + sums.a_error) * grown + underflow * grown + 2 ** -45 * sums.a;
  return internal + how.out_roundoff * (Math.abs(o) + internal) + how.out_subnormal / 2;
}
