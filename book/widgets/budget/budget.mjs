// The calculator: a block's budget and occupancy, with tiles of the reader's own, the least time of
// a shape, and what a variant of attention changes.
import { choice, element, keep_options, options_of } from "../elements.mjs";
import { Entry, message_at, numbers_of } from "../form/entry.mjs";
import { FIELDS } from "../form/fields.mjs";
import { block_tables, block_words } from "./block.mjs";
import { shape_form } from "./shape.mjs";
import { NoSuchTile, block_of } from "./tile.mjs";

/**
 * @typedef {import("./occupancy.mjs").Gpu & import("./roofline.mjs").Rates} Facts
 * @typedef {{rows: import("./formula.mjs").Row[], total: number}} Ledger
 * @typedef {{rows: number[], total: number}} Places  of the rows of a ledger
 * @typedef {{kernel: string, head_dim: number, tile: string, threads: number, promised: number,
 *   operation: string, rows: number, tensor_cores: boolean, values: Record<string, number>, free:
 *   Record<string, string>, smem: Places, thread: Places, compiled: Record<string, number[]>}}
 *   Variant  values: of the symbols in its formulas; free: what the symbols mean that a reader may
 *   change; compiled: registers and spilled bytes by the features of a variant, where recorded
 * @typedef {{gpus: Facts[], entries: Variant[], legends: Record<string, string>,
 *   lacks: Record<string, Record<string, string>>, rows: import("./formula.mjs").Row[]} &
 *   import("./variant.mjs").Known} Data
 *   lacks: what a kernel needs that a GPU has not, by kernel and GPU
 */

/** @param {HTMLElement} root @param {Data} data */
export function mount_budget(root, data) {
  const kernels = options_of(data.entries.map((e) => e.kernel));
  const gpus = data.gpus.map((gpu, i) => ({ value: String(i), text: `${gpu.name} (${gpu.arch})` }));
  const h200 = gpus.find(({ text }) => text.includes("H200")) ?? gpus[0];
  const kernel = choice("Kernel", kernels, root.dataset.kernel ?? kernels[0].value);
  const head_dim = choice("head_dim", []),
    tile = choice("Tile", []),
    gpu = choice("GPU", gpus, h200.value);
  const refuse_gpu = message_at(gpu.field, gpu.select);
  const asked = {
    threads: new Entry(FIELDS.threads, 1),
    registers: new Entry(FIELDS.registers, 1),
    smem_bytes: new Entry(FIELDS.smem_bytes, 0),
  };
  const own = element("div", { class: "lab-form", role: "group", "aria-label": "the tile" });
  /** @type {Record<string, Entry>} */
  let symbols = {};
  const shape = shape_form();
  const legend = element("p", { class: "lab-note" });
  const status = element("p", { role: "status", class: "lab-status" });
  const results = element("div", { class: "lab-results" });
  const form = (/** @type {string} */ label, /** @type {{field: HTMLElement}[]} */ ...fields) =>
    element(
      "div",
      { class: "lab-form", role: "group", "aria-label": label },
      ...fields.map(({ field }) => field),
    );
  root.replaceChildren(
    form("a kernel and a GPU", kernel, head_dim, tile, gpu),
    own,
    form("a block", ...Object.values(asked)),
    legend,
    status,
    results,
    shape.root,
  );

  const facts = () => data.gpus[Number(gpu.select.value)];
  const variant = () => {
    const of_kernel = data.entries.filter((e) => e.kernel === kernel.select.value);
    keep_options(head_dim.select, options_of(of_kernel.map((e) => e.head_dim)));
    const of_dim = of_kernel.filter((e) => String(e.head_dim) === head_dim.select.value);
    keep_options(tile.select, options_of(of_dim.map((e) => e.tile)));
    return /** @type {Variant} */ (of_dim.find((e) => e.tile === tile.select.value));
  };
  /** The block of the fields, or null once a field has said what is wrong. */
  const tiled = () => {
    const of = variant(),
      chosen = numbers_of(symbols);
    const rows_of = (/** @type {Places} */ { rows }) => rows.map((place) => data.rows[place]);
    try {
      const rows = { smem: rows_of(of.smem), thread: rows_of(of.thread) };
      return chosen && block_of(of, rows, facts(), chosen);
    } catch (error) {
      if (!(error instanceof NoSuchTile)) throw error;
      symbols[error.symbol].refuse(error.message);
      return null;
    }
  };
  const draw = (fitted = false) => {
    const of = variant(),
      lacks = data.lacks[of.kernel]?.[facts().name] ?? "";
    refuse_gpu(lacks && `${of.kernel} ${lacks}; the ${facts().name} is ${facts().arch}.`);
    status.textContent = "";
    results.replaceChildren();
    const block = lacks === "" ? tiled() : null;
    shape.show(of, facts(), lacks === "", block, data);
    if (!block) return;
    asked.threads.limit({ max: facts().threads_per_block_max });
    asked.registers.limit({ max: facts().registers_per_thread_max });
    if (fitted) {
      asked.threads.set(block.threads);
      asked.registers.set(block.registers);
      asked.smem_bytes.set(block.smem.total);
    }
    const given = numbers_of(asked);
    if (!given) return;
    status.textContent = block_words(facts(), given);
    results.append(...block_tables(of, block, facts(), given));
  };
  const choose = () => {
    const { free, values } = variant();
    const made = Object.entries(free).map(([symbol, meaning]) => {
      const takes = { ...FIELDS.symbol, label: `${symbol}: ${meaning}` };
      return /** @type {const} */ ([symbol, new Entry(takes, values[symbol])]);
    });
    symbols = Object.fromEntries(made);
    for (const { input } of Object.values(symbols))
      input.addEventListener("input", () => draw(true));
    own.replaceChildren(...made.map(([, { field }]) => field));
    own.hidden = made.length === 0;
    legend.textContent =
      `A tile is ${data.legends[kernel.select.value]}. ` + "Numbers are those of fp16 and bf16.";
    draw(true);
  };
  shape.root.addEventListener("input", () => draw());
  for (const { select } of [kernel, head_dim, tile]) select.addEventListener("change", choose);
  gpu.select.addEventListener("change", () => draw(true));
  for (const { input } of Object.values(asked)) input.addEventListener("input", () => draw());
  choose();
}
