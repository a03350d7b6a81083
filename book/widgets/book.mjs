// What a page of the book starts: the widgets that it places, and the worker that runs kernels.
import { mount_assignment } from "./ask/assignment.mjs";
import { mount_audit } from "./ask/audit.mjs";
import { mount_progress } from "./ask/progress.mjs";
import { mount_question } from "./ask/question.mjs";
import { mount_bits } from "./bits/bits.mjs";
import { mount_break_kernel } from "./break_kernel.mjs";
import { mount_budget } from "./budget/budget.mjs";
import { element } from "./elements.mjs";
import { mount_guess } from "./guess.mjs";
import { run } from "./machine/jobs.mjs";
import { mount_batches } from "./read/batches.mjs";
import { served } from "./python/python.mjs";
import { Session } from "./python/session.mjs";
import { mount_figure } from "./read/figure.mjs";
import { mount_sort } from "./read/sort.mjs";
import { mount_tolerance } from "./read/tolerance.mjs";
import { mount_run_kernel } from "./run_kernel.mjs";
import { mount_step_kernel } from "./step/step_kernel.mjs";

/** @typedef {(name: string) => Promise<any>} Assets  the data of a widget, by name */

const script = typeof document === "undefined" ? null : document.currentScript;
const here = script && "src" in script ? script.src.replace(/[^/]*$/, "") : "";

/** @type {Record<string, Promise<any>>} */
const loading = {};

/** Loads a file by a script, as a page that is opened from a disk may do. @type {Assets} */
function asset_of_page(name) {
  loading[name] ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${here}${name}.js`;
    script.onload = () => resolve(/** @type {any} */ (globalThis).lab_assets[name]);
    script.onerror = () => {
      delete loading[name];
      reject(new Error(`${name}.js was not found`));
    };
    document.head.append(script);
  });
  return loading[name];
}

function worker() {
  try {
    const text = `(${lab_bundle})().begin()`;
    const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" })),
      made = new Worker(address);
    URL.revokeObjectURL(address);
    return made;
  } catch {
    return null; // the browser or a policy allows no worker
  }
}

/** @type {import("./python/session.mjs").Shelf["compiler"]} */
async function compiler(progress) {
  const { Compiler } = await asset_of_page("edit"),
    mega = (/** @type {number} */ bytes) => (bytes / 1e6).toFixed(1);
  return Compiler.load(here, (/** @type {any} */ { bytes, of, what }) =>
    progress(of ? `${what}: ${mega(bytes)} of ${mega(of)} MB.` : `${what}.`),
  );
}

function serve() {
  globalThis.onmessage = async ({ data }) => {
    try {
      const progress = async (/** @type {number} */ done, /** @type {number} */ blocks) =>
        postMessage({ progress: [done, blocks] });
      const result = data.python ? await served(data.python) : await run(data, progress);
      postMessage({ result });
    } catch (error) {
      postMessage({ error: error instanceof Error ? error.message : String(error) });
    }
  };
}

/** @type {Session | null} */
let session = null;

/** @param {HTMLElement} root @param {Assets} asset */
function mount(root, asset) {
  const shelf = { ...lab_data, asset, worker };
  root.classList.add("lab-live");
  const name = root.dataset.labWidget;
  if (name === "run_kernel") mount_run_kernel(root, shelf);
  else if (name === "guess") mount_guess(root);
  else if (name === "question") mount_question(root);
  else if (name === "assignment" || name === "audit") {
    session ??= new Session({ asset, worker, compiler });
    if (name === "audit") mount_audit(root, session);
    else mount_assignment(root, session);
  } else if (name === "progress") mount_progress(root);
  else if (name === "budget") asset("budget").then((data) => mount_budget(root, data));
  else if (name === "bits") asset("bits").then((data) => mount_bits(root, data));
  else if (name === "batches") asset("batches").then((data) => mount_batches(root, data));
  else if (name === "tolerance")
    asset("tolerances").then((data) => mount_tolerance(root, shelf, data));
  else if (name === "step_kernel") mount_step_kernel(root, shelf);
  else if (name === "edit_kernel")
    asset("edit").then((editor) => editor.mount(root, { ...shelf, here }));
  else asset("broken").then((data) => mount_break_kernel(root, shelf, data));
}

function mount_all() {
  for (const root of /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll("[data-lab-widget]")
  ))
    mount(root, asset_of_page);
  for (const image of /** @type {NodeListOf<HTMLImageElement>} */ (
    document.querySelectorAll("img[data-values]")
  ))
    mount_figure(image, () => asset_of_page(/** @type {string} */ (image.dataset.values)));
  for (const table of /** @type {NodeListOf<HTMLTableElement>} */ (
    document.querySelectorAll(".bd-article table")
  ))
    mount_sort(table);
}

/** Starts the script in a page, or in the worker that the page has made of the same script. */
export function begin() {
  if (typeof document === "undefined") serve();
  else if (document.readyState === "loading")
    document.addEventListener("DOMContentLoaded", mount_all);
  else mount_all();
}

/**
 * A widget in JupyterLab, whose data come from the kernel of the notebook.
 * @param {{model: {get: (name: string) => string, send: (content: unknown) => void,
 *   on: (event: string, listener: (content: any) => void) => void}, el: HTMLElement}} view
 */
export function render({ model, el }) {
  /** @type {Record<string, {resolve: (data: any) => void, reject: (reason: Error) => void}>} */
  const waiting = {};
  model.on("msg:custom", ({ asset, text, error }) => {
    if (error) waiting[asset]?.reject(new Error(error));
    else waiting[asset]?.resolve(JSON.parse(text));
  });
  /** @type {Record<string, Promise<any>>} */
  const asked = {};
  const asset = (/** @type {string} */ name) =>
    (asked[name] ??= new Promise((resolve, reject) => {
      waiting[name] = { resolve, reject };
      model.send({ asset: name });
    }));
  const root = element("div", { class: "lab-widget" });
  root.dataset.labWidget = model.get("name");
  root.dataset.kernel = model.get("kernel");
  el.append(root);
  mount(root, asset);
}
