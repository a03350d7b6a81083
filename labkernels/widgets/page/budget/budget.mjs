// The budget and occupancy calculator.
import { choice, element, number, set_options, table } from "../elements.mjs";
import { for_one_more, occupancy, registers_allowed } from "./occupancy.mjs";

/**
 * @typedef {{rows: {name: string, formula: string, amount: number, note: string}[], total:
 *   number}} Ledger
 * @typedef {{kernel: string, head_dim: number, tile: string, threads: number, promised: number,
 *   smem: Ledger, thread: Ledger}} Entry
 * @typedef {{gpus: import("./occupancy.mjs").Gpu[], entries: Entry[], legends: Record<string,
 *   string>}} Data
 */

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
  const legend = element("p", { class: "lab-note" });
  const status = element("p", { role: "status", class: "lab-status" });
  const results = element("div", { class: "lab-results" });
  root.replaceChildren(
    element(
      "div",
      { class: "lab-form", role: "group", "aria-label": "a block" },
      ...[kernel, head_dim, tile, gpu, registers, smem].map((f) => f.field),
    ),
    legend,
    status,
    results,
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
  const chosen = () => {
    const found = entry();
    const facts = data.gpus[Number(gpu.select.value)];
    registers.input.value = registers_allowed(facts, found.threads, found.promised);
    smem.input.value = found.smem.total;
    draw();
  };
  const draw = () => {
    const block = {
      threads: entry().threads,
      registers: Number(registers.input.value),
      smem_bytes: Number(smem.input.value),
    };
    const facts = data.gpus[Number(gpu.select.value)];
    try {
      show(results, status, entry(), facts, block);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      status.textContent = error.message;
      results.replaceChildren();
    }
  };
  for (const { select } of [kernel, head_dim, tile, gpu]) select.addEventListener("change", chosen);
  for (const { input } of [registers, smem]) input.addEventListener("input", draw);
  chosen();
}

/**
 * @param {HTMLElement} results @param {HTMLElement} status @param {Entry} entry
 * @param {import("./occupancy.mjs").Gpu} gpu @param {import("./occupancy.mjs").Block} block
 */
function show(results, status, entry, gpu, block) {
  const held = occupancy(gpu, block);
  status.textContent =
    held.blocks === 0
      ? `No block fits an SM of the ${gpu.name}: its limit is ${held.limit}.`
      : `An SM of the ${gpu.name} holds ${held.blocks} blocks of ${block.threads} threads, ` +
        `${(100 * held.fraction).toFixed(0)} % of its warps. The limit is ${held.limit}.`;
  const more = [];
  if (held.limit === "registers")
    more.push(["registers", for_one_more(gpu, block, "registers"), "registers per thread"]);
  if (held.limit === "shared memory")
    more.push(["smem_bytes", for_one_more(gpu, block, "smem_bytes"), "bytes of shared memory"]);
  const sentences = more.map(([, amount, unit]) =>
    amount === null
      ? "One more block does not fit, whatever it needs of this."
      : `One more block needs at most ${count.format(/** @type {number} */ (amount))} ${unit}.`,
  );
  const by = held.by.map(([name, blocks]) => [
    name === held.limit ? `${name} (the limit)` : name,
    String(blocks),
  ]);
  const ledger = (/** @type {Ledger} */ of, /** @type {string} */ unit) => [
    ...of.rows.map((row) => [row.name, count.format(row.amount), row.formula, row.note]),
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
      ledger(entry.smem, "where buffers share a space, the larger counts"),
    ),
    title("Registers of a thread, by the ledger"),
    table(
      "Registers of a thread, by the ledger",
      heads("registers"),
      ledger(entry.thread, "of these lines"),
    ),
  );
}

/** @param {string} text */
const title = (text) => element("p", { class: "lab-title" }, text);
