// "Run this kernel, here": the form, and what a run says.
import { choice, element, keep_options, options_of } from "./elements.mjs";
import { Entry } from "./form/entry.mjs";
import { FIELDS } from "./form/fields.mjs";
import { own_form } from "./form/own_form.mjs";
import { run_apart, run_form, runner } from "./form/runner.mjs";
import { KINDS, OWN } from "./machine/launches.mjs";
import { shown, summary } from "./run/result.mjs";

/**
 * @typedef {{name: string, kernel: string, idea: string, dtype: string, head_dim: number,
 *   tensor_cores: boolean, keys: string[], recorded: string}} Offer
 * @typedef {{module: import("./machine/jobs.mjs").Module, cases: Record<string,
 *   import("./machine/jobs.mjs").Case>}} Asset
 * @typedef {{offers: Offer[], steps: {kernel: string, asset: string}[],
 *   writing: {mb: number, prompt: string}, asset: (name: string) => Promise<any>,
 *   worker: () => Worker | null}} Shelf
 */

const RECORDED = "recorded",
  KEPT = 2; // runs that are shown side by side
const KIND_TEXT = /** @type {Record<string, string>} */ ({
  normal: "random, nearly normal",
  peaky: "peaky: q times 6",
  integers: "integers from -4 to 4",
  [OWN]: "your own numbers",
});

/** @param {HTMLElement} root @param {Shelf} shelf */
export function mount_run_kernel(root, shelf) {
  const kernels = [...new Set(shelf.offers.map((o) => o.kernel))];
  const wanted = root.dataset.kernel ?? kernels[0];
  const text_of = (/** @type {string} */ name) => {
    const found = /** @type {Offer} */ (shelf.offers.find((o) => o.kernel === name));
    return `${name}: tensor cores ${found.tensor_cores ? "on" : "off"}`;
  };
  const form = {
    kernel: choice(
      "Kernel",
      kernels.map((value) => ({ value, text: text_of(value) })),
      wanted,
    ),
    dtype: choice("Numbers", []),
    head_dim: choice("head_dim", []),
    keys: choice("Keys", []),
    kind: choice(
      "Inputs",
      [...KINDS, OWN].map((value) => ({ value, text: KIND_TEXT[value] })),
      "normal",
    ),
    seed: new Entry(FIELDS.seed, 0),
  };
  const idea = element("p", { class: "lab-note" });
  const refresh = () => {
    const of_kernel = shelf.offers.filter((o) => o.kernel === form.kernel.select.value);
    keep_options(form.dtype.select, options_of(of_kernel.map((o) => o.dtype)));
    const of_dtype = of_kernel.filter((o) => o.dtype === form.dtype.select.value);
    keep_options(form.head_dim.select, options_of(of_dtype.map((o) => o.head_dim)));
    const recorded = `as recorded on an H200: ${of_kernel[0].recorded}`;
    keep_options(
      form.keys.select,
      of_kernel[0].keys.map((value) => ({
        value,
        text: value === RECORDED ? recorded : `one request of ${value}`,
      })),
    );
    idea.textContent = of_kernel[0].idea;
  };
  form.kernel.select.addEventListener("change", refresh);
  form.dtype.select.addEventListener("change", refresh);
  refresh();
  const own = own_form(form.kind.select, form.seed.field);
  const results = element("div", { class: "lab-results" });
  const text = (/** @type {HTMLSelectElement} */ select) => select.selectedOptions[0].text;
  /** @type {import("./run/result.mjs").Ran[]} */
  let runs = [];
  const running = runner("Run", async ({ say, signal, progress }) => {
    const [kernel, dtype, head_dim, keys, kind] = [
      form.kernel,
      form.dtype,
      form.head_dim,
      form.keys,
      form.kind,
    ].map(({ select }) => select.value);
    const seed = kind === OWN ? 0 : form.seed.number();
    if (seed === null) return form.seed.input.focus();
    const inputs =
      `head_dim ${head_dim}, ${dtype}; ${text(form.keys.select)}; ` +
      `${text(form.kind.select)}${kind === OWN ? "" : `, seed ${seed}`}`;
    say("The inputs are drawn.");
    const offer = shelf.offers.find(
      (o) => o.kernel === kernel && o.dtype === dtype && String(o.head_dim) === head_dim,
    );
    const { module, cases } = await shelf.asset(/** @type {Offer} */ (offer).name),
      plan = cases[keys],
      given = own.read(plan.attention);
    if (given === null) return say("");
    const job = { module, plan, seed, kind, own: given };
    const result = await run_apart(job, shelf, progress, signal);
    const recorded = keys === RECORDED && seed === 0 && kind === "normal";
    const sha256 = recorded ? plan.sha256 : null,
      words = `${kernel}: ${inputs}`;
    const same = inputs + JSON.stringify(given ?? null);
    runs = [{ words, kernel, inputs: same, result, sha256 }, ...runs].slice(0, KEPT);
    say(summary(runs[0]));
    results.replaceChildren(...shown(runs));
  });
  const fields = Object.values(form).map(({ field }) => field);
  const controls = run_form("what to run", running, ...fields, own.root);
  root.replaceChildren(idea, controls, running.bar, running.status, results);
}
