// What a page of the book starts: the widgets that it places, and the worker that runs kernels.
import { mount_assignment } from "./ask/assignment.mjs";
import { mount_audit } from "./ask/audit.mjs";
import { mount_progress } from "./ask/progress.mjs";
import { mount_question } from "./ask/question.mjs";
import { mount_bits } from "./bits/bits.mjs";
import { mount_break_kernel } from "./break_kernel.mjs";
import { mount_budget } from "./budget/budget.mjs";
import { element } from "./elements.mjs";
import { keep, restore } from "./form/address.mjs";
import { mount_guess } from "./guess.mjs";
import { run } from "./machine/jobs.mjs";
import { mount_batches } from "./read/batches.mjs";
import { served } from "./python/python.mjs";
import { Session } from "./python/session.mjs";
import { mount_figure } from "./read/figure.mjs";
import { mount_sort } from "./read/sort.mjs";
import { mount_tolerance } from "./read/tolerance.mjs";
import { mount_first_run } from "./run/first_run.mjs";
import { mount_run_kernel } from "./run_kernel.mjs";
import { mount_step_kernel } from "./step/step_kernel.mjs";
import { mount_write } from "./write/write.mjs";

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

/** Python in this page, which assignments and audits share. */
function python() {
  session ??= new Session({ asset: asset_of_page, worker, compiler });
  return session;
}

/** @typedef {import("./run_kernel.mjs").Shelf} Shelf */

/** @typedef {Record<string, (root: HTMLElement, shelf: Shelf) => unknown>} Widgets */

/** @type {Widgets} */
const WIDGETS = {
  guess: mount_guess,
  question: mount_question,
  progress: mount_progress,
  assignment: (root) => mount_assignment(root, python()),
  audit: (root) => mount_audit(root, python()),
  first_run: mount_first_run,
  edit_kernel: (root, shelf) =>
    asset_of_page("edit").then(
      (editor) => editor.mount(root, { ...shelf, here }),
      () => root.append(element("p", {}, "This build of the book has no editor.")),
    ),
};
/**
 * Those whose fields are kept in the address of the page, and that can be skipped by keyboard.
 * @type {Widgets}
 */
const STANDING = {
  run_kernel: mount_run_kernel,
  step_kernel: mount_step_kernel,
  break_kernel: async (root, shelf) => mount_break_kernel(root, shelf, await shelf.asset("broken")),
  budget: async (root, { asset }) => mount_budget(root, await asset("budget")),
  bits: async (root, { asset }) => mount_bits(root, await asset("bits")),
  batches: async (root, { asset }) => mount_batches(root, await asset("batches")),
  tolerance: async (root, shelf) => mount_tolerance(root, shelf, await shelf.asset("tolerances")),
  write: mount_write,
};

/** @param {HTMLElement} root @param {Assets} asset */
function mount(root, asset) {
  root.classList.add("lab-live");
  const name = /** @type {string} */ (root.dataset.labWidget);
  return (STANDING[name] ?? WIDGETS[name])(root, { ...lab_data, asset, worker });
}

/** @param {HTMLElement} root @param {number} i  its number in the page */
async function mount_in_page(root, i) {
  const stands = /** @type {string} */ (root.dataset.labWidget) in STANDING;
  if (stands) {
    const after = element("span", { id: `lab-after-${i}`, tabIndex: -1 });
    const words = "Skip this form and its results";
    root.before(element("a", { class: "lab-skip", href: `#${after.id}` }, words));
    root.after(after);
    keep(root);
  }
  await mount(root, asset_of_page);
  if (!stands || !restore(root)) return;
  root.closest("details")?.setAttribute("open", "");
  root.scrollIntoView();
}

function mount_all() {
  const roots = /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll("[data-lab-widget]")
  );
  roots.forEach(mount_in_page);
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
