// The calculator: a block's budget and occupancy, with tiles of the reader's own, and the least
// time of a shape.
import { choice, element, number, set_options, table } from "../elements.mjs";
import { ledger_of } from "./formula.mjs";
import { for_one_more, occupancy, registers_allowed } from "./occupancy.mjs";
import { least_time, work_of } from "./roofline.mjs";

/**
 * @typedef {import("./occupancy.mjs").Gpu & import("./roofline.mjs").Rates} Facts
 * @typedef {{rows: import("./formula.mjs").Row[], total: number}} Ledger
 * @typedef {{rows: number[], total: number}} Places  of the rows of a ledger
 * @typedef {{kernel: string, head_dim: number, tile: string, threads: number, promised: number,
 *   operation: string, rows: number, tensor_cores: boolean, values: Record<string, number>, free:
 *   Record<string, string>, smem: Places, thread: Places}} Entry
 *   values: of the symbols in its formulas; free: what the symbols mean that a reader may change
 * @typedef {{gpus: Facts[], entries: Entry[], legends: Record<string, string>,
 *   rows: import("./formula.mjs").Row[]}} Data
 */

const MOST_OF_A_SYMBOL = 1024,
  MOST_ROWS = 64; // of a tile that a single group fills
const SHAPED = ["decode", "prefill"]; // operations whose least time is shown
const WORDS = /** @type {Record<string, string>} */ ({ math: "products", exp: "exponentials" });
const count = new Intl.NumberFormat("en");

/** @param {HTMLElement} root @param {Data} data */
export function mount_budget(root, data) {
  const options = (/** @type {(string | number)[]} */ values) =>
    [...new Set(values)].map((value) => ({ value: String(value), text: String(value) }));
  const kernels = options(data.entries.map((e) => e.kernel));
  const gpus = data.gpus.map((gpu, i) => ({ value: String(i), text: `${gpu.name} (${gpu.arch})` }));
  const h200 = gpus.find(({ text }) => text.includes("H200")) ?? gpus[0];
  const kernel = choice("Kernel", kernels, root.dataset.kernel ?? kernels[0].value);
  const head_dim = choice("head_dim", []),
    tile = choice("Tile", []);
  const gpu = choice("GPU", gpus, h200.value);
  const registers = number("Registers per thread", 1, 1, 255);
  const smem = number("Shared memory, bytes", 0, 0, 300000);
  const own = element("div", { class: "lab-form", role: "group", "aria-label": "the tile" });
  /** @type {Record<string, any>} */
  let symbols = {};
  const shape = shape_form();
  const legend = element("p", { class: "lab-note" });
  const status = element("p", { role: "status", class: "lab-status" });
  const results = element("div", { class: "lab-results" });
  root.replaceChildren(
    element(
      "div",
      { class: "lab-form", role: "group", "aria-label": "a block" },
      ...[kernel, head_dim, tile, gpu, registers, smem].map((f) => f.field),
    ),
    own,
    legend,
    status,
    results,
    shape.root,
  );

  const keep = (
    /** @type {HTMLSelectElement} */ select,
    /** @type {{value: string, text: string}[]} */ list,
  ) =>
    set_options(
      select,
      list,
      list.some((o) => o.value === select.value) ? select.value : list[0].value,
    );
  const entry = () => {
    const of_kernel = data.entries.filter((e) => e.kernel === kernel.select.value);
    keep(head_dim.select, options(of_kernel.map((e) => e.head_dim)));
    const of_dim = of_kernel.filter((e) => String(e.head_dim) === head_dim.select.value);
    keep(tile.select, options(of_dim.map((e) => e.tile)));
    legend.textContent = `A tile is ${data.legends[kernel.select.value]}. Numbers are those of
      fp16 and bf16.`;
    return /** @type {Entry} */ (of_dim.find((e) => e.tile === tile.select.value));
  };
  const facts = () => data.gpus[Number(gpu.select.value)];
  const block = () => {
    const found = entry(),
      values = { ...found.values };
    const rows_of = (/** @type {Places} */ places) => places.rows.map((place) => data.rows[place]);
    for (const [symbol, input] of Object.entries(symbols)) values[symbol] = Number(input.value);
    const warps = values.W / found.values.W || 1;
    return {
      entry: found,
      values,
      threads: "W" in symbols ? found.threads * warps : found.threads,
      smem: ledger_of(rows_of(found.smem), values),
      thread: ledger_of(rows_of(found.thread), values),
    };
  };
  const said = (/** @type {() => void} */ act) => {
    try {
      act();
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      status.textContent = error.message;
      results.replaceChildren();
    }
  };
  const chosen = () => {
    const found = entry();
    symbols = {};
    const fields = Object.entries(found.free).map(([symbol, meaning]) => {
      const made = number(`${symbol}: ${meaning}`, found.values[symbol], 1, MOST_OF_A_SYMBOL);
      made.input.addEventListener("input", () => said(fitted));
      symbols[symbol] = made.input;
      return made.field;
    });
    own.replaceChildren(...fields);
    own.hidden = fields.length === 0;
    fitted();
  };
  const fitted = () => {
    const of = block();
    registers.input.value = registers_allowed(facts(), of.threads, of.entry.promised);
    smem.input.value = of.smem.total;
    draw();
  };
  const draw = () =>
    said(() => {
      const of = block();
      const asked = {
        threads: of.threads,
        registers: Number(registers.input.value),
        smem_bytes: Number(smem.input.value),
      };
      show(results, status, of, facts(), asked);
      shape.show(of.entry, facts());
    });
  shape.root.addEventListener("input", draw);
  for (const { select } of [kernel, head_dim, tile, gpu])
    select.addEventListener("change", () => said(chosen));
  for (const { input } of [registers, smem]) input.addEventListener("input", draw);
  chosen();
}

/** The fields of a shape, and its least time on a GPU. */
function shape_form() {
  const fields = {
    requests: number("Requests", 64, 1, 65536),
    tokens: number("Query tokens of each", 1, 1, 1 << 20),
    keys: number("Keys of each", 8192, 1, 1 << 24),
    q_heads: number("Query heads", 32, 1, 1024),
    kv_heads: number("KV heads", 8, 1, 1024),
  };
  const said = element("p", { role: "status", class: "lab-status" }),
    times = element("div", {});
  const form = element(
    "div",
    { class: "lab-form", role: "group", "aria-label": "a shape" },
    ...Object.values(fields).map(({ field }) => field),
  );
  const root = element("div", {}, title("The least time of a shape"), form, said, times);
  const show = (/** @type {Entry} */ entry, /** @type {Facts} */ gpu) => {
    root.hidden = !SHAPED.includes(entry.operation);
    if (root.hidden) return;
    const given = Object.entries(fields).map(([name, { input }]) => [name, Number(input.value)]);
    const work = work_of({ ...Object.fromEntries(given), head_dim: entry.head_dim });
    const few = entry.operation === "decode" ? Math.min(entry.rows, MOST_ROWS) : null;
    const how = { tensor_cores: entry.tensor_cores, mma_rows: few };
    const least = least_time(work, gpu, how);
    const named = (/** @type {string} */ name) => WORDS[name] ?? name;
    const peak = entry.tensor_cores ? gpu.tensor_fp16_flops : gpu.fp32_flops;
    const short = (/** @type {number} */ x, digits = 3) => x.toPrecision(digits);
    said.textContent =
      `The ${gpu.name} needs at least ${short(least.time * 1e6, 4)} microseconds: the limit is ` +
      `${named(least.bound)}. The shape has ${short(work.flops / work.bytes)} FLOP per byte; ` +
      `the GPU can do ${short(peak / gpu.dram_bytes_per_s)} while it moves one.`;
    const rows = Object.entries(least.times).map(([name, time]) => [
      name === least.bound ? `${named(name)} (the limit)` : named(name),
      (time * 1e6).toPrecision(4),
    ]);
    times.replaceChildren(table("Each alone at its peak", ["resource", "microseconds"], rows));
  };
  return { root, show };
}

/**
 * @param {HTMLElement} results @param {HTMLElement} status
 * @param {{entry: Entry, values: Record<string, number>, smem: Ledger, thread: Ledger}} of
 * @param {import("./occupancy.mjs").Gpu} gpu @param {import("./occupancy.mjs").Block} block
 */
function show(results, status, { entry, values, smem, thread }, gpu, block) {
  const held = occupancy(gpu, block);
  status.textContent =
    held.blocks === 0
      ? `No block fits an SM of the ${gpu.name}: its limit is ${held.limit}.`
      : `An SM of the ${gpu.name} holds ${held.blocks} ${held.blocks === 1 ? "block" : "blocks"} ` +
        `of ${block.threads} threads, ` +
        `${(100 * held.fraction).toFixed(0)} % of its warps. The limit is ${held.limit}.`;
  const more = [];
  if (held.limit === "registers")
    more.push(["registers", for_one_more(gpu, block, "registers"), "registers per thread"]);
  if (held.limit === "shared memory")
    more.push(["smem_bytes", for_one_more(gpu, block, "smem_bytes"), "bytes of shared memory"]);
  const sentences = more.map(([, amount, unit]) =>
    amount === null
      ? "One more block does not fit, however little of this it needs."
      : `One more block needs at most ${count.format(/** @type {number} */ (amount))} ${unit}.`,
  );
  const changed = Object.keys(entry.free).some((symbol) => values[symbol] !== entry.values[symbol]);
  const by = held.by.map(([name, blocks]) => [
    name === held.limit ? `${name} (the limit)` : name,
    String(blocks),
  ]);
  const ledger = (/** @type {Ledger} */ of, /** @type {string} */ unit) => [
    ...of.rows.map((row) => [
      row.name,
      count.format(row.amount),
      changed ? in_words(row.symbols, values) : row.formula,
      row.note,
    ]),
    ["total", count.format(of.total), "", unit],
  ];
  const heads = (/** @type {string} */ unit) => ["line", unit, "formula", "note"];
  results.replaceChildren(
    ...sentences.map((text) => element("p", {}, text)),
    table("Blocks on an SM, by each resource", ["resource", "blocks"], by),
    title("Shared memory of a block"),
    table(
      "Shared memory of a block",
      heads("bytes"),
      ledger(smem, "where buffers share a space, the larger counts"),
    ),
    title("Registers of a thread, by the ledger"),
    table(
      "Registers of a thread, by the ledger",
      heads("registers"),
      ledger(thread, "of these lines"),
    ),
  );
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

/** @param {string} text */
const title = (text) => element("p", { class: "lab-title" }, text);
