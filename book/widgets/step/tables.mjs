// What a stepper says in tables: the online softmax of a row, and the block's mbarriers.
import { details, element, table } from "../elements.mjs";
import { figures } from "../form/fields.mjs";
import { merged, softmax_of } from "../machine/trace.mjs";

/** @typedef {import("../machine/trace.mjs").Memory} Memory */

/** @param {number} x */
const short = (x) => figures(x, 6);

/**
 * @param {Memory} memory @param {import("../machine/trace.mjs").Row[]} all
 * @param {{select: HTMLSelectElement, field: HTMLElement}} choice  of the row
 */
export function softmax_table({ softmax }, all, choice) {
  const row = all[Number(choice.select.value)];
  if (!row) return "";
  const parts = row.warps.map((w) => (softmax[w] ? softmax_of(softmax[w], row) : null));
  const channels = row.o.map((_, channel) => `o of channel ${channel}`);
  const rows = parts.map((part, i) =>
    part === null
      ? [`warp ${row.warps[i]}`, "no key yet", "0", ...channels.map(() => "0")]
      : [`warp ${row.warps[i]}`, short(part.m), short(part.l), ...part.o.map(short)],
  );
  const begun = parts.filter((part) => part !== null);
  if (begun.length > 0 && channels.length > 0) {
    const { m, l, o } = merged(begun);
    rows.push(["together, o / l", short(m), short(l), ...o.map(short)]);
  }
  const caption = `The online softmax of ${row.name}`;
  const o = "O lies in registers that wgmma writes while the softmax runs, and is not shown.";
  return element(
    "div",
    {},
    element("p", { class: "lab-title" }, "The online softmax: {m, l, o} of each warp"),
    choice.field,
    table(caption, ["keys of", "m, in log2", "l", ...channels], rows),
    channels.length > 0 ? "" : element("p", { class: "lab-note" }, o),
  );
}

/** @param {Memory} memory @param {string[]} names */
export function barriers_table({ barriers }, names) {
  if (names.length === 0) return "";
  const rows = barriers.map(({ phase, pending, count, bytes }, i) => [
    names[i],
    String(phase),
    `${pending} of ${count}`,
    String(bytes),
  ]);
  const heads = ["mbarrier", "phase", "arrivals to come", "bytes to come"];
  const caption = "The mbarriers of the block";
  return details(caption, true, table(caption, heads, rows));
}
