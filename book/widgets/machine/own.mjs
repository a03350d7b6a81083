// Numbers that a reader types: how many a tensor takes, and where they lie in it.
import { LARGEST } from "./formats.mjs";

/**
 * @typedef {{q: number[], k: number[], v: number[]}} Own  all numbers, in the order of their sizes
 * @typedef {"q" | "k" | "v"} Role
 * @typedef {import("./launches.mjs").Attention} Attention
 */

/** @type {Role[]} */
export const ROLES = ["q", "k", "v"];

/** Tokens, heads and channels of a tensor, in the order of its numbers.
 * @param {Attention} a @param {Role} role */
export function size_of(a, role) {
  const tokens = (role === "q" ? a.q_lens : a.kv_lens).reduce((x, y) => x + y, 0);
  const heads = role === "q" ? a.q_heads : a.kv_heads;
  return { tokens, heads, channels: role === "v" ? a.head_dim_v : a.head_dim };
}

/** @param {number} n */
const count = (n) => n.toLocaleString("en-US");

/**
 * All numbers of a tensor. The text has all of them, a row for all rows, or one number for all.
 * Raises: Error that names the tensor, what is wrong and what is allowed.
 * @param {Role} role @param {string} text @param {Attention} a
 */
export function parse(role, text, a) {
  const { tokens, heads, channels } = size_of(a, role),
    all = tokens * heads * channels,
    name = role === "q" ? "q" : role.toUpperCase();
  const words = text.split(/[\s,;[\]]+/).filter((word) => word !== "");
  const numbers = words.map((word, i) => {
    const number = Number(word);
    if (!Number.isFinite(number))
      throw new Error(`${name} has "${word}" as its number ${i + 1}, allowed: finite numbers`);
    if (Math.abs(number) > LARGEST[a.dtype])
      throw new Error(
        `${name} has ${word} as its number ${i + 1}, allowed in ${a.dtype}: up to ` +
          `${LARGEST[a.dtype].toPrecision(5)}`,
      );
    return number;
  });
  if (![1, channels, all].includes(numbers.length))
    throw new Error(
      `${name} has ${count(numbers.length)} numbers, allowed: 1, ${channels} (a row) or ` +
        `${count(all)} (${count(tokens)} ${role === "q" ? "queries" : "keys"} x ${heads} heads x ` +
        `${channels} channels)`,
    );
  return Array.from({ length: all }, (_, i) => numbers[i % numbers.length]);
}

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
