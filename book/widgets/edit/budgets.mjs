// Both budgets of a block beside the editor: shared memory as the compiler counts it, registers as
// the book's formula does.
import { details, element, table } from "../elements.mjs";
import { occupancy, registers_allowed } from "../budget/occupancy.mjs";

/** @typedef {import("./edit_kernel.mjs").Entry} Entry */

const count = new Intl.NumberFormat("en");

/**
 * @param {Entry} entry @param {import("../budget/occupancy.mjs").Gpu} gpu
 * @param {number | null} compiled  bytes of the struct of the text that was compiled last, or null
 */
export function budgets({ budget, reported, launch }, gpu, compiled) {
  const { threads, promised, thread, smem } = budget,
    bytes = compiled ?? launch.smem_bytes,
    allowed = registers_allowed(gpu, threads, promised);
  const held = occupancy(gpu, { threads, registers: allowed, smem_bytes: bytes });
  const by = new Map(held.by),
    change = bytes - launch.smem_bytes;
  const than = `${count.format(Math.abs(change))} ${change > 0 ? "more" : "fewer"} than before`;
  const whose = compiled === null ? "the unchanged kernel takes" : "your code takes";
  const fits =
    by.get("shared memory") === 0
      ? `No block fits: the ${gpu.name} allows ${count.format(gpu.smem_per_block_max_bytes)}.`
      : `An SM of the ${gpu.name} has room for ${by.get("shared memory")} such blocks.`;
  const rows = (/** @type {typeof thread.rows} */ all) =>
    all.map((row) => [row.name, count.format(row.amount), row.formula, row.note]);
  const heads = (/** @type {string} */ unit) => ["line", unit, "formula", "note"];
  const spilled = reported?.spill_bytes ? `${reported.spill_bytes} bytes spilled` : "no spill";
  const gpu_says = reported
    ? `ptxas gave the unchanged kernel ${reported.registers}, ` +
      `${Math.abs(reported.registers - thread.total)} ` +
      `${reported.registers < thread.total ? "fewer" : "more"} ` +
      `(${reported.compiler}, ${reported.arch}, ${spilled}).`
    : "No compiler's report on the unchanged kernel is recorded.";
  return element(
    "div",
    { class: "lab-sides" },
    element(
      "section",
      {},
      element("p", { class: "lab-title" }, "Shared memory of a block"),
      element(
        "p",
        {},
        element("b", {}, `${count.format(bytes)} bytes`),
        `: ${whose} sizeof(Smem)${change === 0 ? "" : `, ${than}`}. ${fits}`,
      ),
      details(
        "The unchanged kernel, line by line",
        false,
        table("Shared memory of the unchanged kernel", heads("bytes"), rows(smem.rows)),
      ),
    ),
    element(
      "section",
      {},
      element("p", { class: "lab-title" }, "Registers of a thread"),
      element(
        "p",
        {},
        element("b", {}, `${thread.total} registers`),
        ` by the book's formula, for the unchanged kernel. ${gpu_says} ${promised} ` +
          `${promised === 1 ? "block" : "blocks"} of ${threads} threads leave ${allowed} ` +
          "to each thread. Only a compiler for the GPU knows how many your code takes.",
      ),
      details(
        "The formula, line by line",
        false,
        table("Registers of the unchanged kernel", heads("registers"), rows(thread.rows)),
      ),
    ),
  );
}
