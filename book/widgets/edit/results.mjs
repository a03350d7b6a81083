// What a run of edited code gave, beside the run before it: errors under their bounds, and bits
// beside those of the unchanged kernel.
import { details, element, svg, table } from "../elements.mjs";
import { encode } from "../machine/formats.mjs";
import { decades_of, errors_chart } from "../run/chart.mjs";

/**
 * @typedef {import("../machine/jobs.mjs").Result} Result
 * @typedef {import("../machine/launches.mjs").Attention} Attention
 * @typedef {{count: number, of: number, cells: number[][], in_cell: number[][], first: {request:
 *   number, token: number, head: number, channel: number, here: number, there: number} | null,
 *   steps: number, lse2: number, lse2_of: number}} Parted
 *   cells: how many elements part, by request and head; steps: of the format, the farthest apart
 * @typedef {{label: string, inputs: string, built: string, result: Result, a: Attention,
 *   parted: Parted | null, recorded: boolean, equal: boolean}} Shown
 *   recorded: an H200 ran the same inputs; equal: every bit is that of the unchanged kernel
 */

const LEFT = 30,
  CELL = 12; // of a picture of bits

/** A 16-bit number's place among all numbers of its format. @param {number} bits */
const place = (bits) => (bits & 0x8000 ? -(bits & 0x7fff) : bits);

/**
 * Where two outputs part.
 * @param {{found: Float64Array, lse2: Float64Array}} here
 * @param {{found: Float64Array, lse2: Float64Array}} there @param {Attention} a
 * @returns {Parted}
 */
export function parted(here, there, a) {
  const width = a.head_dim_v,
    request_of = a.q_lens.flatMap((n, request) => Array(n).fill(request));
  const zeros = () => a.q_lens.map(() => Array(a.q_heads).fill(0));
  /** @type {Parted} */
  const made = {
    count: 0,
    of: here.found.length,
    cells: zeros(),
    in_cell: zeros(),
    first: null,
    steps: 0,
    lse2: here.lse2.reduce((n, x, i) => n + Number(!Object.is(x, there.lse2[i])), 0),
    lse2_of: here.lse2.length,
  };
  const bits = (/** @type {number} */ x) => new Uint16Array(encode(a.out_dtype, [x]).buffer)[0];
  here.found.forEach((x, i) => {
    const row = Math.floor(i / width),
      head = row % a.q_heads,
      token = Math.floor(row / a.q_heads),
      request = request_of[token],
      y = there.found[i];
    ++made.in_cell[request][head];
    if (Object.is(x, y)) return;
    ++made.count;
    ++made.cells[request][head];
    made.first ??= { request, token, head, channel: i % width, here: x, there: y };
    if (a.out_dtype !== "fp32" && Number.isFinite(x) && Number.isFinite(y))
      made.steps = Math.max(made.steps, Math.abs(place(bits(x)) - place(bits(y))));
  });
  return made;
}

/** @param {number} n */
const count = (n) => n.toLocaleString("en-US");

/** @param {Shown} shown */
export function bits_in_words({ recorded, equal, parted: of, a }) {
  const whose = recorded ? "the H200's" : "those of the unchanged kernel";
  if (equal) return `Equal in every bit to ${recorded ? "the H200" : "the unchanged kernel"}.`;
  if (of === null) return "Bits are compared once the unchanged kernel has run.";
  const lse2 = of.lse2
    ? `lse2 parts in ${count(of.lse2)} of ${count(of.lse2_of)} rows.`
    : "lse2 is equal in every bit.";
  if (!of.first) return `The bits of out are ${whose}; ${lse2}`;
  const { request, token, head, channel, here, there } = of.first;
  const far = of.steps ? ` The farthest are ${count(of.steps)} steps of ${a.out_dtype} apart.` : "";
  return (
    `${count(of.count)} of ${count(of.of)} elements part from ${whose}. The first is in request ` +
    `${request}, token ${token}, head ${head}, channel ${channel}: ${here.toPrecision(5)} here, ` +
    `${there.toPrecision(5)} there.${far} ${lse2}`
  );
}

/** @param {Result} result */
export function verdict_in_words({ heads, error }) {
  if (error !== null) return "The kernel was stopped.";
  const outside = heads.filter((head) => !head.inside);
  if (heads.every(({ bound }) => bound === 0))
    return outside.length === 0
      ? "Every number is right: nothing rounds here."
      : "BUG: numbers are wrong, and nothing rounds here.";
  if (outside.length === 0)
    return (
      "Every error is inside its bound: rounding alone can cause it. This is the first test of " +
      "the verdict; the others, which also find bugs below the bound, need Python."
    );
  const worst = outside.reduce((a, b) => (b.ratio > a.ratio ? b : a));
  return (
    `BUG: error / bound ${worst.ratio.toPrecision(3)} > 1 in head ${worst.name}; ` +
    `${outside.length} of ${heads.length} heads exceed what rounding can do.`
  );
}

/** Which heads part, in which requests. @param {Parted} parted */
function bits_picture({ cells, in_cell }) {
  const heads = cells[0].length,
    width = LEFT + cells.length * CELL + 2;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${heads * CELL + 18}`,
    class: "lab-parted",
    role: "img",
    "aria-label": "Heads and requests whose bits part; the sentence above has the numbers",
  });
  picture.style.setProperty("--lab-columns", String(width / CELL));
  for (let head = 0; head < heads; ++head) {
    const y = head * CELL;
    if (head % 4 === 0)
      picture.append(svg("text", { x: LEFT - 6, y: y + 10, "text-anchor": "end" }, String(head)));
    cells.forEach((of, request) => {
      const some = of[head] > 0,
        opacity = some ? 0.35 + (0.65 * of[head]) / in_cell[request][head] : 1;
      const place = { x: LEFT + request * CELL + 0.5, y: y + 0.5, width: CELL - 1 };
      const kind = some ? "lab-parts" : "lab-same";
      picture.append(svg("rect", { class: kind, ...place, height: CELL - 1, opacity }));
    });
  }
  picture.append(svg("text", { x: LEFT, y: heads * CELL + 14 }, "requests"));
  return picture;
}

/** @param {number} x */
const short = (x) => (x === 0 ? "0" : x.toExponential(2));

/**
 * One run, to stand beside another.
 * @param {Shown} shown @param {string} when @param {[number, number]} decades  of both pictures
 */
function panel(shown, when, decades) {
  const { label, inputs, built, result, equal, parted: of } = shown,
    { heads, error } = result;
  const head = element("p", { class: "lab-title" }, `${when}: ${label}`);
  if (error !== null)
    return element("section", {}, head, element("p", { class: "lab-error" }, error));
  const good = heads.every(({ inside }) => inside);
  const rows = heads.map(({ name, error, bound, ratio, inside }) => [
    `head ${name}`,
    short(error),
    short(bound),
    `${(100 * ratio).toPrecision(3)} %`,
    inside ? "rounding can do this" : "a bug",
  ]);
  const columns = ["rows", "largest error", "largest bound", "error / bound", "verdict"];
  return element(
    "section",
    {},
    head,
    element("p", { class: "lab-note" }, `${inputs}; ${built}.`),
    element(
      "p",
      {},
      `${result.blocks} blocks ran in ${(result.milliseconds / 1000).toFixed(2)} s.`,
    ),
    element("p", { class: equal ? "lab-good" : "lab-apart" }, bits_in_words(shown)),
    of && of.count > 0 ? bits_picture(of) : "",
    element("p", { class: good ? "" : "lab-error" }, verdict_in_words(result)),
    errors_chart(heads, decades, "head"),
    details("Error of each head", false, table("Error of each head", columns, rows)),
  );
}

/** The last run and the one before it. @param {Shown[]} runs  the last one comes first */
export function side_by_side(runs) {
  const decades = decades_of(runs.map(({ result }) => result.heads)),
    when = ["Now", "Before"],
    legend = "In a picture, a dot is the largest error of a head, and a line is its bound.";
  const panels = runs.map((run, i) => panel(run, when[i], decades));
  return element(
    "div",
    {},
    element("div", { class: "lab-sides" }, ...panels.toReversed()),
    element("p", { class: "lab-note" }, legend),
  );
}
