// "Step it": one block from barrier to barrier, or word to word, forward and back.
import { choice, element } from "../elements.mjs";
import { run_apart } from "../run_kernel.mjs";
import { Stepper } from "./stepper.mjs";

/**
 * @typedef {import("../run_kernel.mjs").Asset & {parts: {words: string, source: string}[],
 *   maps: {syncs: number, tiles: import("./smem_map.mjs").Tile[]}[], group: number,
 *   sources: Record<string, string[]>}} Broken
 * @typedef {import("../run_kernel.mjs").Shelf} Shelf
 */

/** @param {Broken} broken */
export const part_options = (broken) =>
  ["Nothing is broken", ...broken.parts.map((part) => part.words)].map((text, i) => ({
    value: String(i),
    text,
  }));

/** @param {HTMLElement} root @param {Shelf} shelf @param {Broken} broken */
export function mount_step_kernel(root, shelf, broken) {
  const part = choice("The kernel", part_options(broken), "0");
  const form = element(
    "form",
    { class: "lab-form", "aria-label": "what to step through" },
    part.field,
    element("button", { type: "submit", class: "lab-button" }, "Record a run"),
  );
  const status = element("p", { role: "status", class: "lab-status" });
  const stepper = element("div", { class: "lab-results" });
  root.replaceChildren(form, status, stepper);
  let runs = 0; // only the last one that was asked for is shown
  const record = async () => {
    const run = ++runs;
    const job = {
      module: broken.module,
      plan: broken.cases.recorded,
      seed: 0,
      kind: "normal",
      off: Number(part.select.value),
      traced: true,
    };
    status.textContent = "The kernel runs.";
    stepper.replaceChildren();
    try {
      const { events, error } = await run_apart(job, shelf, () => {});
      if (run !== runs) return;
      status.textContent =
        error === null
          ? `The run has ${events.length} words in which threads met.`
          : `The checks have stopped the kernel: ${error}`;
      new Stepper(stepper, broken, events, error);
    } catch (error) {
      status.textContent = `The run failed: ${error instanceof Error ? error.message : error}`;
    }
  };
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    record();
  });
  new IntersectionObserver((seen, observer) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    if (runs === 0) record();
  }).observe(root);
}
