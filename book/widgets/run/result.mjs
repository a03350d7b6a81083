// What a run says: its bits beside an H200's, and its errors beside their bounds.
import { details, element, table } from "../elements.mjs";
import { decades_of, errors_chart } from "./chart.mjs";

/**
 * @typedef {import("../machine/jobs.mjs").Result} Result
 * @typedef {import("../machine/jobs.mjs").Group} Group
 * @typedef {{words: string, kernel: string, inputs: string, result: Result, sha256: string | null}}
 *   Ran  words: kernel and inputs; sha256: of an H200's output, if it is recorded
 */

/** @param {number} x */
const short = (x) => (x === 0 ? "0" : x.toExponential(2));

/** What the bits of a run are worth. @param {Ran} ran */
export const bits_of = ({ result, sha256 }) =>
  sha256 === null
    ? "No GPU run of these inputs is recorded; the recorded one has random inputs and seed 0."
    : result.sum === sha256
      ? "Equal in every bit to the H200."
      : "Some bits differ from the H200's, which must not happen.";

/** A run in one sentence or two. @param {Ran} ran */
export function summary(ran) {
  const { error, heads, blocks, milliseconds } = ran.result;
  if (error !== null) return "The machine stopped the kernel.";
  const worst = heads.reduce((a, b) => (b.error > a.error ? b : a));
  const inside = heads.every((group) => group.inside);
  return (
    `${blocks} blocks ran in ${(milliseconds / 1000).toFixed(2)} s. ${bits_of(ran)} ` +
    `The largest error is ${short(worst.error)}, in head ${worst.name}` +
    `${inside ? ", and every error is inside its bound." : "; an error exceeds its bound."}`
  );
}

/** A run beside the one before it; no words if they had other inputs. @param {Ran[]} runs */
export function compared([now, before]) {
  const failed = [now, before].some((ran) => !ran || ran.result.error !== null);
  if (failed || now.inputs !== before.inputs) return "";
  if (now.result.sum === before.result.sum) return "Both runs have the same bits.";
  const pairs = now.result.heads.map((head, i) => [head.error, before.result.heads[i].error]);
  const smaller = pairs.filter(([a, b]) => a < b).length,
    same = pairs.filter(([a, b]) => a === b).length;
  return (
    `On the same inputs, the largest error of a head is smaller in ${now.kernel} than in ` +
    `${before.kernel} for ${smaller} of ${pairs.length} heads, and the same for ${same}.`
  );
}

/** Runs side by side, the newest first. @param {Ran[]} runs */
export function shown(runs) {
  const decades = decades_of(runs.map(({ result }) => result.heads));
  const legend = "In a picture, a dot is the largest error of a head, and a line is its bound. ";
  return [
    element("p", { class: "lab-note" }, legend, compared(runs)),
    element("div", { class: "lab-runs" }, ...runs.map((ran) => panel(ran, decades))),
  ];
}

/** @param {Ran} ran @param {[number, number]} decades  of the pictures of all runs */
function panel(ran, decades) {
  const { result, sha256, words } = ran;
  const root = element("section", { class: "lab-run", "aria-label": words });
  root.append(element("p", { class: "lab-title" }, words));
  if (result.error !== null) {
    root.append(element("pre", { class: "lab-error", tabIndex: 0 }, result.error));
    return root;
  }
  if (sha256 !== null)
    root.append(
      element("p", { class: result.sum === sha256 ? "lab-good" : "lab-error" }, bits_of(ran)),
    );
  const ratio = Math.max(...result.heads.map((group) => group.ratio));
  const facts = Object.entries({
    "nearest to its bound": `${(100 * ratio).toFixed(1)} %`,
    "SHA-256 of out and lse2": element("code", {}, result.sum),
    "the last outputs": result.first.map((x) => x.toPrecision(5)).join(", "),
    "the same in float64": result.true_first.map((x) => x.toPrecision(5)).join(", "),
  }).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  root.append(
    errors_chart(result.heads, decades, "head"),
    errors_table(result.heads, "head"),
    errors_table(result.requests, "request"),
    details("Its bits and outputs", false, element("dl", { class: "lab-facts" }, ...facts)),
  );
  return root;
}

/** @param {Group[]} groups @param {string} name  of a group */
function errors_table(groups, name) {
  const heads = ["rows", "largest error", "largest bound", "error / bound"];
  const rows = groups.map((g) => [
    `${name} ${g.name}`,
    short(g.error),
    short(g.bound),
    `${(100 * g.ratio).toFixed(1)} %`,
  ]);
  const caption = `Error of each ${name}`;
  return details(caption, false, table(caption, heads, rows));
}
