// How a decode or a causal prefill of equal requests is cut into blocks, as labkernels.kernels cuts
// it in decode.schedule and packed_gqa.schedule; a test compares the two on random shapes.
import { keys_seen } from "./roofline.mjs";

/**
 * @typedef {import("./roofline.mjs").Shape} Shape
 * @typedef {{rows: number, keys: number, warps: number, slots: number, sm_count: number}} Tile
 *   rows: of Q that a block computes; slots: blocks that the GPU holds at once
 * @typedef {{blocks: number, splits: number, steps: number}} Grid
 *   steps: of a tile's keys that all blocks take together
 */

const PAGE = 16, // keys
  MAX_SPLITS = 65535,
  MOST_TILES = 2 ** 18; // of a request's KV head, which are counted one by one

/** @param {Shape} shape @param {Tile} tile @returns {Grid} */
export function decode_grid(shape, { rows, keys, warps, slots, sm_count }) {
  const held = keys_seen({ ...shape, keys: Math.ceil(shape.keys / PAGE) * PAGE }),
    group = shape.q_heads / shape.kv_heads,
    units = shape.requests * shape.kv_heads * Math.ceil(group / rows),
    step = warps * keys,
    per_split = decode_keys_per_split(units, held, slots, sm_count, step),
    splits = Math.max(1, Math.ceil(held / per_split));
  return { blocks: units * splits, splits, steps: units * Math.ceil(keys_seen(shape) / keys) };
}

/**
 * @param {number} units @param {number} held @param {number} slots @param {number} sm_count
 * @param {number} step
 */
function decode_keys_per_split(units, held, slots, sm_count, step) {
  let splits = 1,
    least = 1;
  if (units <= 2 * sm_count) {
    splits = Math.floor((2 * sm_count) / units);
    least = Math.min(256, held);
  } else if (units > slots) splits = fewest_full_waves(units, slots, held);
  const keys = Math.max(Math.ceil(held / splits), Math.ceil(held / MAX_SPLITS), least, 1);
  return Math.ceil(keys / step) * step;
}

/** @param {number} units @param {number} slots @param {number} held */
function fewest_full_waves(units, slots, held) {
  const most = Math.max(1, Math.floor(held / 1024));
  const fullness = (/** @type {number} */ splits) => {
    const waves = (units * splits) / slots;
    return waves / Math.ceil(waves);
  };
  let best = 1;
  for (let splits = 1; splits <= most; ++splits) {
    if (fullness(splits) >= 0.97) return splits;
    if (fullness(splits) > fullness(best)) best = splits;
  }
  return best;
}

/** The grid of a prefill; null if it has too many tiles. @param {Shape} shape @param {Tile} tile */
export function prefill_grid(shape, tile) {
  const group = shape.q_heads / shape.kv_heads,
    tiles = Math.ceil((shape.tokens * group) / tile.rows);
  if (tiles > MOST_TILES) return null;
  /** How many tiles of the call go over so many keys. @type {Map<number, number>} */
  const counts = new Map();
  for (let i = 0; i < tiles; ++i) {
    const keys = keys_of_tile(shape, tile, group, i);
    counts.set(keys, (counts.get(keys) ?? 0) + shape.requests);
  }
  const visible = [...counts],
    longest = Math.max(...counts.keys()),
    wanted = best_splits(visible, longest, shape.kv_heads, tile),
    per_split = Math.max(1, Math.ceil(longest / wanted / tile.keys)) * tile.keys;
  const sum = (/** @type {(keys: number) => number} */ of) =>
    visible.reduce((all, [keys, count]) => all + of(keys) * count, 0) * shape.kv_heads;
  return {
    blocks: sum((keys) => Math.max(1, Math.ceil(keys / per_split))),
    splits: Math.max(1, Math.ceil(longest / per_split)),
    steps: sum((keys) => Math.ceil(keys / tile.keys)),
  };
}

/**
 * The keys that tile i goes over, from the step in which its first row's begin.
 * @param {Shape} shape @param {Tile} tile @param {number} group @param {number} i
 */
function keys_of_tile({ tokens, keys, window }, tile, group, i) {
  const token = (/** @type {number} */ row) => Math.min(Math.floor(row / group), tokens - 1),
    clamped = (/** @type {number} */ key) => Math.max(0, Math.min(key, keys)),
    place = keys - tokens,
    end = clamped(place + token((i + 1) * tile.rows - 1) + 1),
    begin = window === null ? 0 : clamped(place + token(i * tile.rows) - window);
  return Math.max(0, end - Math.floor(begin / tile.keys) * tile.keys);
}

/**
 * The fewest splits whose expected time comes near the shortest.
 * @param {[number, number][]} visible @param {number} longest @param {number} kv_heads
 * @param {Tile} tile
 */
function best_splits(visible, longest, kv_heads, { rows, slots }) {
  const even = (visible.reduce((all, [keys, n]) => all + keys * n, 0) * kv_heads) / slots,
    foreseen = (/** @type {number} */ keys, /** @type {number} */ cost) =>
      foreseen_keys(visible, keys, cost, kv_heads, slots),
    whole = foreseen(Math.max(1, longest), 0);
  if (whole <= 1.1 * even) return 1;
  const least = Math.max(256, 4 * rows),
    times = [[1, whole]];
  for (const splits of split_choices())
    if (splits * least <= longest)
      times.push([splits, foreseen(Math.ceil(longest / splits), 64 + 2 * rows)]);
  const near = 1.1 * Math.min(...times.map(([, keys]) => keys));
  return /** @type {number[]} */ (times.find(([, keys]) => keys <= near))[0];
}

const split_choices = () => [
  2,
  3,
  ...[0, 1, 2, 3, 4, 5, 6].flatMap((octave) => [4, 5, 6, 7].map((step) => step << octave)),
];

/**
 * A lower limit on the keys of the busiest slot, where each split costs some more keys.
 * @param {[number, number][]} visible @param {number} keys @param {number} cost
 * @param {number} kv_heads @param {number} slots
 */
function foreseen_keys(visible, keys, cost, kv_heads, slots) {
  /** @type {Map<number, number>} */
  const blocks = new Map();
  const add = (/** @type {number} */ size, /** @type {number} */ count) =>
    count && blocks.set(size + cost, (blocks.get(size + cost) ?? 0) + count * kv_heads);
  for (const [seen, count] of visible) {
    add(keys, Math.floor(seen / keys) * count);
    if (seen % keys) add(seen % keys, count);
  }
  let before = 0,
    sum = 0,
    busiest = 0;
  for (const [size, count] of [...blocks].sort(([a], [b]) => b - a)) {
    const turn = Math.floor((before + count - 1) / slots); // the last of these that begins a round
    if (turn * slots >= before) busiest = Math.max(busiest, size * (turn + 1));
    before += count;
    sum += size * count;
  }
  return Math.max(busiest, sum / slots);
}
