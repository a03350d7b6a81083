// "Which requests part": how a library cuts a batch, beside each of its requests alone.
import { choice, element, options_of, table } from "../elements.mjs";

/**
 * @typedef {[number, number, number][] | number} Entry  labels alone and in the batch, and whether
 *   they part, for each part of the mix; or the label that says why the cut is not known
 * @typedef {{mixes: string[], lengths: number[], sizes: number[], labels: string[],
 *   parts: Record<string, number[]>, cuts: Record<string, Record<string, Entry[][][]>>,
 *   said: string}} Batches
 * @typedef {{gpu: string, library: string, mix: string, keys: string, size: string}} Chosen
 */

/**
 * The rows of the table for a choice, or the reason why there are none.
 * @param {Batches} data @param {Chosen} chosen
 * @returns {{rows: string[][], reason: string, parted: number}}
 */
export function rows_of(data, { gpu, library, mix, keys, size }) {
  const of = data.cuts[gpu][library][data.mixes.indexOf(mix)];
  const entry = of[data.lengths.indexOf(Number(keys))][data.sizes.indexOf(Number(size))];
  if (typeof entry === "number") return { rows: [], reason: data.labels[entry], parted: 0 };
  const parts = data.parts[mix],
    n = Number(size);
  let parted = 0;
  const rows = entry.map(([alone, batch, other], i) => {
    const count = Math.ceil((n - i) / parts.length);
    parted += other ? count : 0;
    const length = (Number(keys) / parts[i]).toLocaleString("en");
    const label = [data.labels[alone], data.labels[batch]];
    return [`${count} of ${length} keys`, ...label, other ? "may change" : "the same"];
  });
  return { rows, reason: "", parted };
}

/** @param {HTMLElement} root @param {Batches} data */
export function mount_batches(root, data) {
  const gpus = Object.keys(data.cuts),
    gpu = choice("GPU", options_of(gpus), gpus.find((name) => name.includes("H200")) ?? gpus[0]);
  const library = choice("library", options_of(Object.keys(data.cuts[gpus[0]])), "FlashInfer fa2"),
    size = choice("requests", options_of(data.sizes), "8"),
    keys = choice("keys of the longest", options_of(data.lengths), "2048"),
    mix = choice("lengths", options_of(data.mixes), data.mixes[0]);
  const all = [gpu, library, size, keys, mix],
    status = element("p", { class: "lab-status", role: "status" }),
    shown = element("div", {});
  const group = { class: "lab-form", role: "group", "aria-label": "the batch" };
  root.replaceChildren(
    element("div", group, ...all.map(({ field }) => field)),
    status,
    shown,
    element("p", { class: "lab-note" }, `${data.said}. A cut: rows x keys of a tile, splits.`),
  );
  const draw = () => {
    const [of_gpu, of_library, of_size, of_keys, of_mix] = all.map(({ select }) => select.value);
    const chosen = { gpu: of_gpu, library: of_library, size: of_size, keys: of_keys, mix: of_mix };
    const { rows, reason, parted } = rows_of(data, chosen);
    status.textContent = reason
      ? `Not known: ${reason}.`
      : `${parted} of ${of_size} requests are cut otherwise than alone.`;
    const heads = ["requests", "cut alone", "cut in the batch", "bits"];
    shown.replaceChildren(...(reason ? [] : [table("How the batch is cut", heads, rows)]));
  };
  for (const { select } of all) select.addEventListener("change", draw);
  draw();
}
