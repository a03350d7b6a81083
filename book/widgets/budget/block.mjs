// What a block takes, and how many blocks an SM holds.
import { element, table } from "../elements.mjs";
import { for_one_more, occupancy } from "./occupancy.mjs";

/**
 * @typedef {import("./budget.mjs").Variant} Variant
 * @typedef {import("./budget.mjs").Ledger} Ledger
 */

const count = new Intl.NumberFormat("en");

/**
 * What an SM holds, in words.
 * @param {import("./occupancy.mjs").Gpu} gpu @param {import("./occupancy.mjs").Block} block
 */
export function block_words(gpu, block) {
  const { blocks, limit, fraction } = occupancy(gpu, block);
  if (blocks === 0) return `No block fits an SM of the ${gpu.name}: its limit is ${limit}.`;
  return (
    `An SM of the ${gpu.name} holds ${blocks} ${blocks === 1 ? "block" : "blocks"} ` +
    `of ${count.format(block.threads)} threads, ${(100 * fraction).toFixed(0)} % of its warps. ` +
    `The limit is ${limit}.`
  );
}

/**
 * What one more block would need, in words, if registers or shared memory limit the blocks.
 * @param {string} limit @param {import("./occupancy.mjs").Gpu} gpu
 * @param {import("./occupancy.mjs").Block} block
 */
function one_more(limit, gpu, block) {
  if (limit !== "registers" && limit !== "shared memory") return "";
  const registers = limit === "registers",
    amount = for_one_more(gpu, block, registers ? "registers" : "smem_bytes");
  return amount === null
    ? "One more block does not fit, however little of this it needs."
    : `One more block needs at most ${count.format(amount)} ` +
        `${registers ? "registers per thread" : "bytes of shared memory"}.`;
}

/**
 * @param {Variant} entry @param {import("./tile.mjs").Tiled} tiled
 * @param {import("./occupancy.mjs").Gpu} gpu @param {import("./occupancy.mjs").Block} block
 */
export function block_tables(entry, { values, smem, thread }, gpu, block) {
  const held = occupancy(gpu, block),
    more = one_more(held.limit, gpu, block);
  const changed = Object.keys(entry.free).some((symbol) => values[symbol] !== entry.values[symbol]);
  const by = held.by.map(([name, blocks]) => [
    name === held.limit ? `${name} (the limit)` : name,
    String(blocks),
  ]);
  const ledger = (
    /** @type {string} */ caption,
    /** @type {Ledger} */ of,
    /** @type {string} */ unit,
    /** @type {string} */ note,
  ) => {
    const rows = of.rows.map((row) => [
      row.name,
      count.format(row.amount),
      changed ? in_words(row.symbols, values) : row.formula,
      row.note,
    ]);
    const total = ["total", count.format(of.total), "", note];
    return [
      element("p", { class: "lab-title" }, caption),
      table(caption, ["line", unit, "formula", "note"], [...rows, total]),
    ];
  };
  const larger = "where buffers share a space, the larger counts";
  return [
    ...(more ? [element("p", {}, more)] : []),
    table("Blocks on an SM, by each resource", ["resource", "blocks"], by),
    ...ledger("Shared memory of a block", smem, "bytes", larger),
    ...ledger("Registers of a thread, by the ledger", thread, "registers", "of these lines"),
  ];
}

/**
 * A formula with other numbers put in; nothing for one that needs more than a line.
 * @param {string} symbols
 * @param {Record<string, number>} values
 */
const in_words = (symbols, values) =>
  /\\min|\\left|\\frac.*\\frac/.test(symbols)
    ? ""
    : symbols
        .replace(/\\frac\{(.*)\}\{(.*)\}/, "($1) / ($2)")
        .replace(/\\,|\\cdot/g, "x")
        .replace(/\b[A-Za-z](_[A-Za-z])?\b/g, (name) => String(values[name] ?? name));
