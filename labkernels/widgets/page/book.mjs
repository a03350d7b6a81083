// What a page of the book starts: the widgets that it places, and the worker that runs kernels.
import { mount_break_kernel } from "./break_kernel.mjs";
import { mount_budget } from "./budget/budget.mjs";
import { mount_guess } from "./guess.mjs";
import { run } from "./machine/jobs.mjs";
import { mount_run_kernel } from "./run_kernel.mjs";
import { mount_step_kernel } from "./step/step_kernel.mjs";

const here =
  typeof document === "undefined"
    ? ""
    : /** @type {HTMLScriptElement} */ (document.currentScript).src.replace(/[^/]*$/, "");

/** @type {Record<string, Promise<any>>} */
const loading = {};

/** A file that a page opened from a disk may load too. @param {string} name */
function asset(name) {
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
    const source = new Blob([`(${lab_bundle})(self)`], { type: "text/javascript" });
    const address = URL.createObjectURL(source),
      made = new Worker(address);
    URL.revokeObjectURL(address);
    return made;
  } catch {
    return null; // a browser, or a policy, that allows none
  }
}

function serve() {
  globalThis.onmessage = async ({ data }) => {
    try {
      const result = await run(data, async (done, blocks) =>
        postMessage({ progress: [done, blocks] }),
      );
      postMessage({ result });
    } catch (error) {
      postMessage({ error: error instanceof Error ? error.message : String(error) });
    }
  };
}

function mount() {
  const shelf = { ...lab_data, asset, worker };
  for (const root of /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll("[data-lab-widget]")
  )) {
    root.classList.add("lab-live");
    const name = root.dataset.labWidget;
    if (name === "run_kernel") mount_run_kernel(root, shelf);
    else if (name === "guess") mount_guess(root);
    else if (name === "budget") asset("budget").then((data) => mount_budget(root, data));
    else if (name === "step_kernel") mount_step_kernel(root, shelf);
    else asset("broken").then((data) => mount_break_kernel(root, shelf, data));
  }
}

if (typeof document === "undefined") serve();
else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", mount);
else mount();
