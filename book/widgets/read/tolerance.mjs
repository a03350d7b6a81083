// "Choose a tolerance": which kernels that run in this page an atol and rtol let through, and which
// recorded outputs of a GPU the rules in use let through.
import { choice, details, element, options_of, table } from "../elements.mjs";
import { run_apart, run_form, runner } from "../form/runner.mjs";
import { HISTOGRAM_WORDS, histogram, named_histogram } from "./histogram.mjs";
import { mount_sort } from "./sort.mjs";

/**
 * @typedef {[number, number]} Count  outputs judged, and refused
 * @typedef {[string, number, string, ...Count[]]} Row  dtype, keys, bug, and the counts by rule
 * @typedef {{rules: {name: string, meaning: string}[], rows: Row[], origin: string}} Recorded
 * @typedef {import("../machine/jobs.mjs").Elements} Elements
 * @typedef {{words: string, inside: boolean, elements: Elements}} Ran  inside: every error is
 *   inside the bound of rounding
 */

const LOWEST = -6, // powers of ten of the sliders
  PER_DECADE = 4,
  FIRST = 4 * PER_DECADE; // 1e-2
const ANY = "all";

/**
 * How many elements a test calls wrong, because |found - right| <= atol + rtol |right| does not
 * hold. For NaN it never holds.
 * @param {Elements} elements @param {number} atol @param {number} rtol
 */
export const outside = ({ found, right }, atol, rtol) =>
  found.reduce(
    (n, x, i) => n + (Math.abs(x - right[i]) <= atol + rtol * Math.abs(right[i]) ? 0 : 1),
    0,
  );

/**
 * The numbers of judged and refused outputs by bug and rule, of the rows of a dtype and some keys.
 * @param {Row[]} rows @param {string} dtype @param {string} keys  ANY takes all
 * @returns {Map<string, Count[]>}
 */
export function summed(rows, dtype, keys) {
  const of = new Map();
  for (const [its_dtype, its_keys, bug, ...counts] of rows) {
    if (![ANY, its_dtype].includes(dtype) || ![ANY, String(its_keys)].includes(keys)) continue;
    const before = of.get(bug) ?? counts.map(() => [0, 0]);
    of.set(
      bug,
      counts.map(([runs, refused], i) => [before[i][0] + runs, before[i][1] + refused]),
    );
  }
  return of;
}

/**
 * A whole percentage; "<1" or ">99" for a share that is near 0 or 100 and not exactly that.
 * @param {number} part @param {number} all
 */
function percent(part, all) {
  if (all === 0) return "–";
  const share = (100 * part) / all;
  if (share > 0 && share < 1) return "<1";
  return share > 99 && share < 100 ? ">99" : share.toFixed(0);
}

/** @param {HTMLElement} root @param {Recorded} recorded */
function mount_recorded(root, { rules, rows, origin }) {
  const every = (/** @type {number} */ column) =>
    rows.map((row) => /** @type {any} */ (row[column]));
  const dtype = choice("dtype", options_of([ANY, ...every(0).sort()]), ANY);
  const sizes = every(1).sort((a, b) => a - b);
  const keys = choice("keys", options_of([ANY, ...sizes]), ANY);
  const shown = element("div", {});
  const label = "which recorded outputs";
  const group = { class: "lab-form", role: "group", "aria-label": label };
  const meanings = rules.map(({ name, meaning }) => [name, meaning]);
  root.replaceChildren(
    element("div", group, dtype.field, keys.field),
    shown,
    details(
      "What each rule asks",
      false,
      table("What each rule asks", ["rule", "passes if"], meanings),
    ),
    element("p", { class: "lab-note" }, origin),
  );
  const draw = () => {
    const counts = summed(rows, dtype.select.value, keys.select.value);
    const heads = rules.map(({ name }) => name);
    const bugs = [...counts].filter(([bug]) => bug !== "");
    const passed = bugs.map(([bug, of]) => [bug, ...of.map(([n, bad]) => percent(n - bad, n))]);
    const right = (counts.get("") ?? []).map(([n, bad]) => percent(bad, n));
    const most = rules.map((_, i) => bugs.filter(([, of]) => of[i][1] < of[i][0]).length);
    const each = rules.map(({ name }, i) => `${name} ${most[i]}`).join(", ");
    const words = `Of ${bugs.length} bugs, a rule lets this many through at least once: ${each}.`;
    const made = table("Outputs of wrong kernels that pass, %", ["bug", ...heads], passed);
    mount_sort(made.querySelector("table"));
    const refused = [["outputs refused, %", ...right]];
    shown.replaceChildren(
      element("p", { class: "lab-note", role: "status" }, words),
      element("p", { class: "lab-head" }, "Outputs of wrong kernels that pass, %"),
      made,
      element("p", { class: "lab-head" }, "Right kernels"),
      table("Outputs of right kernels that are refused, %", ["right kernels", ...heads], refused),
    );
  };
  dtype.select.addEventListener("change", draw);
  keys.select.addEventListener("change", draw);
  draw();
}

/** A slider of powers of ten. @param {string} label @param {() => void} changed */
function slider(label, changed) {
  const input = element("input", { type: "range", min: 0, max: -LOWEST * PER_DECADE });
  input.value = FIRST;
  const said = element("output", { class: "lab-value" });
  const size = () => 10 ** (LOWEST + Number(input.value) / PER_DECADE);
  const say = () => {
    said.textContent = size().toExponential(1);
    input.setAttribute("aria-valuetext", `${label} ${said.textContent}`);
    changed();
  };
  input.setAttribute("aria-label", label);
  input.addEventListener("input", say);
  const words = element("span", {}, label);
  return { size, say, field: element("div", { class: "lab-slide" }, words, input, said) };
}

/** @param {HTMLElement} root @param {import("../run_kernel.mjs").Shelf} shelf */
function mount_live(root, shelf) {
  /** @type {Ran[]} */
  let ran = [];
  const shown = element("div", { class: "lab-judged" });
  const draw = () => {
    if (ran.length === 0) return;
    const [a, r] = [atol.size(), rtol.size()];
    const rows = ran.map((each) => judged(each, a, r));
    const through = rows.filter(([, , test, bound]) => test === "passes" && bound === "wrong");
    const refused = rows[0][2] !== "passes";
    running.say(
      `A test with atol ${a.toExponential(1)} and rtol ${r.toExponential(1)} ` +
        `lets ${through.length} of ${ran.length - 1} bugs through and ` +
        `${refused ? "refuses" : "passes"} the right kernel.`,
    );
    const heads = ["kernel", "elements outside", "your test", "the bound of rounding"];
    const pictured = rows.map(([words, ...cells], i) => [
      named_histogram(words, histogram(ran[i].elements, a, r)),
      ...cells,
    ]);
    shown.replaceChildren(
      element("p", { class: "lab-note" }, HISTOGRAM_WORDS),
      table("What your tolerance says of each kernel", heads, pictured),
    );
  };
  const running = runner("Run the bugs", async (of) => {
    ran = await run_all(shelf, of);
    draw();
  });
  const atol = slider("atol", draw),
    rtol = slider("rtol", draw);
  const form = run_form("the tolerance", running, atol.field, rtol.field);
  root.replaceChildren(form, running.bar, running.status, shown);
  atol.say();
  rtol.say();
}

/** @param {Ran} ran @param {number} atol @param {number} rtol @returns {string[]} */
function judged({ words, elements, inside }, atol, rtol) {
  const n = outside(elements, atol, rtol);
  const test = n === 0 ? "passes" : "refuses";
  return [words, `${n} of ${elements.found.length}`, test, inside ? "right" : "wrong"];
}

/**
 * decode_mma as it is, and with each bug that the checks of memory do not stop.
 * @param {import("../run_kernel.mjs").Shelf} shelf
 * @param {import("../form/runner.mjs").Running} running
 * @returns {Promise<Ran[]>}
 */
async function run_all(shelf, { say, signal }) {
  const { module, cases, parts } = /** @type {import("../step/step_kernel.mjs").Broken} */ (
    await shelf.asset("broken")
  );
  const bugs = parts.map((part) => part.words.replace(/^Wrong: /, ""));
  const all = ["decode_mma as it is", ...bugs],
    ran = [];
  for (const [off, words] of all.entries()) {
    say(`Kernel ${off + 1} of ${all.length} runs.`);
    const job = { module, plan: cases.recorded, seed: 0, kind: "normal", off, whole: true };
    const { heads, elements } = await run_apart(job, shelf, () => {}, signal);
    if (elements) ran.push({ words, elements, inside: heads.every((head) => head.inside) });
  }
  return ran;
}

/**
 * @param {HTMLElement} root @param {import("../run_kernel.mjs").Shelf} shelf
 * @param {Recorded} recorded
 */
export function mount_tolerance(root, shelf, recorded) {
  const live = element("div", {}),
    rest = element("div", {});
  root.replaceChildren(
    element("p", { class: "lab-question" }, "Your tolerance, on kernels that run in this page"),
    live,
    element("p", { class: "lab-question" }, "Rules in use, on recorded outputs of a GPU"),
    rest,
  );
  mount_live(live, shelf);
  mount_recorded(rest, recorded);
}
