// What a window, a soft cap and sinks change: the grid, the steps of its blocks, and what was
// compiled.
import { figures } from "../form/fields.mjs";
import { decode_grid, prefill_grid } from "./grid.mjs";
import { occupancy, registers_allowed } from "./occupancy.mjs";
import { work_of } from "./roofline.mjs";

/**
 * @typedef {import("./roofline.mjs").Shape} Shape
 * @typedef {{varied: string[], whole_tokens: string[], decode_rows: Record<string, number[]>}}
 *   Known  varied: kernels with windows, soft caps and sinks; whole_tokens: those whose tiles hold
 *   all heads of a token; decode_rows: a block's rows of Q, for groups of 1, 2, 4, ...
 */

const COMPILED_FOR = "sm_90";

/**
 * The grid of a shape; null if it has too many tiles.
 * @param {Shape} shape @param {import("./budget.mjs").Variant} entry
 * @param {import("./budget.mjs").Facts} gpu @param {import("./tile.mjs").Tiled} block
 * @param {Known} known
 */
export function grid_of(shape, entry, gpu, { values, threads, smem }, known) {
  const group = shape.q_heads / shape.kv_heads,
    registers = registers_allowed(gpu, threads, entry.promised),
    held = occupancy(gpu, { threads, registers, smem_bytes: smem.total }),
    tile = {
      keys: values.T,
      warps: threads / 32,
      slots: held.blocks * gpu.sm_count,
      sm_count: gpu.sm_count,
    };
  if (entry.operation === "decode") {
    const rows = known.decode_rows[entry.kernel][Math.ceil(Math.log2(group))];
    return decode_grid(shape, { ...tile, rows });
  }
  const whole = known.whole_tokens.includes(entry.kernel),
    rows = whole ? Math.floor(entry.rows / group) * group : entry.rows;
  return rows === 0 ? null : prefill_grid(shape, { ...tile, rows });
}

/** The features of a variant, as the recorded reports name them. @param {Shape} shape */
const features_of = ({ window, soft_cap, sinks }) =>
  [window !== null && "window", soft_cap && "soft_cap", sinks && "sinks"].filter(Boolean).join("+");

/**
 * A table of what changes: a name, without the variant, with the variant.
 * @param {Shape} shape @param {import("./budget.mjs").Variant} entry
 * @param {import("./budget.mjs").Facts} gpu @param {import("./tile.mjs").Tiled} block
 * @param {Known} known @returns {string[][]}
 */
export function variant_rows(shape, entry, gpu, block, known) {
  const both = [{ ...shape, window: null, soft_cap: false, sinks: false }, shape];
  const row = (/** @type {string} */ name, /** @type {(of: Shape) => number | undefined} */ of) => [
    name,
    ...both.map((one) => {
      const number = of(one);
      if (number === undefined) return "–";
      return number < 1e15 ? number.toLocaleString("en") : figures(number);
    }),
  ];
  const grids = new Map(both.map((one) => [one, grid_of(one, entry, gpu, block, known)])),
    compiled = gpu.arch.startsWith(COMPILED_FOR) ? entry.compiled : {};
  return [
    row("blocks", (of) => grids.get(of)?.blocks),
    row("splits of the keys", (of) => grids.get(of)?.splits),
    row(`steps of ${block.values.T} keys`, (of) => grids.get(of)?.steps),
    row("bytes to move", (of) => work_of(of).bytes),
    row("exp and tanh", (of) => work_of(of).exps),
    row("registers, compiled", (of) => compiled[features_of(of)]?.[0]),
    row("spilled bytes", (of) => compiled[features_of(of)]?.[1]),
    row("shared memory", () => block.smem.total),
  ];
}
