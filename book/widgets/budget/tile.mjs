// The block of a tile that a reader chooses, or what is wrong with that tile.
import { ledger_of } from "./formula.mjs";
import { registers_allowed } from "./occupancy.mjs";

/**
 * @typedef {import("./budget.mjs").Variant} Variant
 * @typedef {import("./formula.mjs").Row} Row
 * @typedef {{values: import("./formula.mjs").Values, threads: number, registers: number, smem:
 *   import("./budget.mjs").Ledger, thread: import("./budget.mjs").Ledger}} Tiled
 *   registers: those that a thread may have if an SM holds the blocks that the tile promises
 */

const LEAST_REGISTERS = 8; // ptxas gives registers to a thread in eights

/** A symbol of a tile, and why its number gives no block. */
export class NoSuchTile extends RangeError {
  /** @param {string} symbol @param {string} words */
  constructor(symbol, words) {
    super(words);
    this.symbol = symbol;
  }
}

/**
 * The block of a kernel's tile with other numbers. Raises: NoSuchTile.
 * @param {Variant} entry @param {{smem: Row[], thread: Row[]}} rows  of its ledgers
 * @param {import("./occupancy.mjs").Gpu} gpu @param {Record<string, number>} chosen  by symbol
 * @returns {Tiled}
 */
export function block_of(entry, rows, gpu, chosen) {
  const ledgers = (/** @type {Record<string, number>} */ values) => ({
    smem: ledger_of(rows.smem, values),
    thread: ledger_of(rows.thread, values),
  });
  const values = { ...entry.values, ...chosen },
    threads = entry.threads * ("W" in chosen ? chosen.W / entry.values.W : 1);
  if (threads > gpu.threads_per_block_max)
    throw new NoSuchTile(
      "W",
      `${chosen.W} warps are ${threads.toLocaleString("en")} threads; a block of the ` +
        `${gpu.name} has at most ${gpu.threads_per_block_max.toLocaleString("en")}.`,
    );
  const registers = registers_allowed(gpu, threads, entry.promised);
  if (registers < LEAST_REGISTERS)
    throw new NoSuchTile(
      "W",
      `The tile promises ${entry.promised} blocks per SM. With ${threads} threads each, a thread ` +
        `of the ${gpu.name} would have fewer than ${LEAST_REGISTERS} registers.`,
    );
  try {
    return { values, threads, registers, ...ledgers(values) };
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    // that symbol whose number, alone put back, gives a tile; else the first
    const symbols = Object.keys(chosen);
    const mends = (/** @type {string} */ symbol) => {
      try {
        return ledgers({ ...values, [symbol]: entry.values[symbol] });
      } catch {
        return null;
      }
    };
    throw new NoSuchTile(symbols.find(mends) ?? symbols[0], `${error.message}.`);
  }
}
