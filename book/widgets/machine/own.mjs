// Where the numbers that a reader types lie in a tensor.
/**
 * @typedef {{q: number[], k: number[], v: number[]}} Own  all numbers, in the order of their sizes
 * @typedef {"q" | "k" | "v"} Role
 * @typedef {import("./launches.mjs").Attention} Attention
 */

/** @type {Role[]} */
export const ROLES = ["q", "k", "v"];

/**
 * The numbers of K or V as a paged cache holds them; slots without a key are 0.
 * @param {number[]} numbers @param {Int32Array} table @param {Attention} a @param {number} n
 */
export function paged(numbers, table, a, n) {
  const row = numbers.length / a.kv_lens.reduce((x, y) => x + y, 0),
    columns = table.length / a.kv_lens.length,
    held = new Float64Array(n);
  let token = 0;
  a.kv_lens.forEach((keys, request) => {
    for (let key = 0; key < keys; ++key, ++token) {
      const page = table[request * columns + Math.floor(key / a.page_size)];
      const slot = page * a.page_size + (key % a.page_size);
      held.set(numbers.slice(row * token, row * (token + 1)), row * slot);
    }
  });
  return held;
}
