// "Run this kernel, here": the form, and what a run says.
import { choice, element, number, set_options, table } from "./elements.mjs";
import { run } from "./machine/jobs.mjs";
import { KINDS, OWN } from "./machine/launches.mjs";
import { own_form } from "./own_form.mjs";

/**
 * @typedef {{name: string, kernel: string, idea: string, dtype: string, head_dim: number,
 *   tensor_cores: boolean, keys: string[], recorded: string}} Offer
 * @typedef {{module: import("./machine/jobs.mjs").Module, cases: Record<string,
 *   import("./machine/jobs.mjs").Case>}} Asset
 * @typedef {{offers: Offer[], steps: {kernel: string, asset: string}[],
 *   asset: (name: string) => Promise<any>, worker: () => Worker | null}} Shelf
 */

const RECORDED = "recorded",
  FRAME_MS = 40;
const KIND_TEXT = /** @type {Record<string, string>} */ ({
  normal: "random, nearly normal",
  peaky: "peaky: q times 6",
  integers: "integers from -4 to 4",
  [OWN]: "your own numbers",
});

/** @param {number} x */
const short = (x) => (x === 0 ? "0" : x.toExponential(2));

/** @param {HTMLElement} root @param {Shelf} shelf */
export function mount_run_kernel(root, shelf) {
  const distinct = (/** @type {(offer: Offer) => string} */ of, /** @type {Offer[]} */ list) => [
    ...new Set(list.map(of)),
  ];
  const kernels = distinct((o) => o.kernel, shelf.offers);
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
    seed: number("Seed", 0, 0, 2 ** 32 - 1),
  };
  const idea = element("p", { class: "lab-note" });
  const refresh = () => {
    const of_kernel = shelf.offers.filter((o) => o.kernel === form.kernel.select.value);
    const keep = (
      /** @type {any} */ field,
      /** @type {string[]} */ values,
      text = (/** @type {string} */ value) => value,
    ) => {
      const value = values.includes(field.select.value) ? field.select.value : values[0];
      set_options(
        field.select,
        values.map((v) => ({ value: v, text: text(v) })),
        value,
      );
    };
    keep(
      form.dtype,
      distinct((o) => o.dtype, of_kernel),
    );
    const of_dtype = of_kernel.filter((o) => o.dtype === form.dtype.select.value);
    keep(
      form.head_dim,
      distinct((o) => String(o.head_dim), of_dtype),
    );
    keep(form.keys, of_kernel[0].keys, (key) =>
      key === RECORDED
        ? `as recorded on an H200: ${of_kernel[0].recorded}`
        : `one request of ${key}`,
    );
    idea.textContent = of_kernel[0].idea;
  };
  form.kernel.select.addEventListener("change", refresh);
  form.dtype.select.addEventListener("change", refresh);
  refresh();
  const own = own_form(form.kind.select, form.seed.field);
  const button = element("button", { type: "submit", class: "lab-button" }, "Run");
  const bar = element("progress", {
    max: 1,
    value: 0,
    hidden: true,
    "aria-label": "blocks that are done",
  });
  const status = element("p", { role: "status", class: "lab-status" });
  const results = element("div", { class: "lab-results" });
  const controls = element(
    "form",
    { class: "lab-form", "aria-label": "what to run" },
    ...Object.values(form).map((f) => f.field),
    own.root,
    button,
  );
  root.replaceChildren(idea, controls, bar, status, results);
  controls.addEventListener("submit", async (/** @type {Event} */ event) => {
    event.preventDefault();
    const offer = /** @type {Offer} */ (
      shelf.offers.find(
        (o) =>
          o.kernel === form.kernel.select.value &&
          o.dtype === form.dtype.select.value &&
          String(o.head_dim) === form.head_dim.select.value,
      )
    );
    const seed = Number(form.seed.input.value),
      kind = form.kind.select.value;
    const keys = form.keys.select.value;
    button.disabled = true;
    results.replaceChildren();
    status.textContent = "The inputs are drawn.";
    try {
      const asset = await shelf.asset(offer.name),
        plan = asset.cases[keys],
        given = own.read(plan.attention);
      bar.hidden = false;
      const result = await run_apart(
        { module: asset.module, plan, seed, kind, own: given },
        shelf,
        (done, blocks) => {
          bar.value = done / blocks;
          status.textContent = `${done} of ${blocks} blocks are done.`;
        },
      );
      show(results, status, result, plan, keys === RECORDED && seed === 0 && kind === "normal");
    } catch (error) {
      status.textContent = `The run failed: ${error instanceof Error ? error.message : error}`;
    } finally {
      bar.hidden = true;
      button.disabled = false;
    }
  });
}

/**
 * Runs a job in a worker. Without a worker, the job runs in the page block by block, and the page
 * reacts between two blocks.
 * @param {import("./machine/jobs.mjs").Job} job @param {Shelf} shelf
 * @param {(done: number, blocks: number) => void} progress
 * @returns {Promise<import("./machine/jobs.mjs").Result>}
 */
export function run_apart(job, shelf, progress) {
  const worker = shelf.worker();
  if (worker === null) {
    let last = performance.now();
    return run(job, async (done, blocks) => {
      if (performance.now() - last < FRAME_MS) return;
      progress(done, blocks);
      await new Promise((resume) => setTimeout(resume));
      last = performance.now();
    });
  }
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.progress) return progress(data.progress[0], data.progress[1]);
      worker.terminate();
      return data.error ? reject(new Error(data.error)) : resolve(data.result);
    };
    worker.onerror = (event) => {
      worker.terminate();
      reject(new Error(event.message));
    };
    worker.postMessage(job);
  });
}

/**
 * @param {HTMLElement} results @param {HTMLElement} status
 * @param {import("./machine/jobs.mjs").Result} result
 * @param {import("./machine/jobs.mjs").Case} plan
 * @param {boolean} recorded  whether an H200 ran the same
 */
function show(results, status, result, plan, recorded) {
  if (result.error !== null) {
    status.textContent = "The machine stopped the kernel.";
    results.append(element("pre", { class: "lab-error" }, result.error));
    return;
  }
  const inside = result.heads.every((group) => group.inside);
  const worst = result.heads.reduce((a, b) => (b.error > a.error ? b : a));
  const ratio = Math.max(...result.heads.map((group) => group.ratio));
  const equal = result.sum === plan.sha256;
  const bits = !recorded
    ? "No GPU run of these inputs is recorded; the recorded one has random inputs and seed 0."
    : equal
      ? "Equal in every bit to the H200."
      : "Some bits differ from the H200's, which must not happen.";
  status.textContent =
    `${result.blocks} blocks ran in ${(result.milliseconds / 1000).toFixed(2)} s. ${bits} ` +
    `The largest error is ${short(worst.error)}, in head ${worst.name}` +
    `${inside ? ", and every error is inside its bound." : "; an error exceeds its bound."}`;
  if (recorded) results.append(element("p", { class: equal ? "lab-good" : "lab-error" }, bits));
  const rows = (
    /** @type {import("./machine/jobs.mjs").Group[]} */ groups,
    /** @type {string} */ name,
  ) =>
    groups.map((g) => [
      `${name} ${g.name}`,
      short(g.error),
      short(g.bound),
      `${(100 * g.ratio).toFixed(1)} %`,
      meter(g.ratio),
    ]);
  const heads = ["rows", "largest error", "largest bound", "error / bound, at most", "the same"];
  results.append(
    element(
      "dl",
      { class: "lab-facts" },
      element("dt", {}, "SHA-256 of out and lse2"),
      element("dd", {}, element("code", {}, result.sum)),
      element("dt", {}, "the last outputs"),
      element("dd", {}, result.first.map((x) => x.toPrecision(5)).join(", ")),
      element("dt", {}, "the same in float64"),
      element("dd", {}, result.true_first.map((x) => x.toPrecision(5)).join(", ")),
      element("dt", {}, "nearest to its bound"),
      element("dd", {}, `${(100 * ratio).toFixed(1)} %`),
    ),
    details(
      "Error of each head",
      table("Error of each head", heads, rows(result.heads, "head")),
      true,
    ),
    details(
      "Error of each request",
      table("Error of each request", heads, rows(result.requests, "request")),
      false,
    ),
  );
}

/** @param {string} title @param {Node} content @param {boolean} open */
const details = (title, content, open) =>
  element("details", { open }, element("summary", {}, title), content);

/** @param {number} ratio */
function meter(ratio) {
  const fill = element("span", { class: "lab-fill" });
  fill.style.width = `${Math.min(100, 100 * ratio)}%`;
  return element("span", { class: "lab-meter", "aria-hidden": "true" }, fill);
}
