// "Step it": one block from barrier to barrier, or word to word, forward and back.
import { choice, element, set_options } from "../elements.mjs";
import { run_apart } from "../run_kernel.mjs";
import { Stepper } from "./stepper.mjs";

/**
 * @typedef {import("../run_kernel.mjs").Asset & {kernel: string, barriers: string[],
 *   maps: {syncs: number, tiles: import("./smem_map.mjs").Tile[]}[],
 *   rows: import("../machine/trace.mjs").Row[], sources: Record<string, string[]>}} Stepped
 * @typedef {Stepped & {parts: {words: string, source: string}[]}} Broken  with switches
 * @typedef {import("../run_kernel.mjs").Shelf} Shelf
 */

/** @param {Broken["parts"]} parts */
export const part_options = (parts) =>
  ["Nothing is broken", ...parts.map((part) => part.words)].map((text, i) => ({
    value: String(i),
    text,
  }));

/** @param {HTMLElement} root @param {Shelf} shelf */
export function mount_step_kernel(root, shelf) {
  const kernel = choice(
    "Kernel",
    shelf.steps.map(({ kernel }) => ({ value: kernel, text: kernel })),
    root.dataset.kernel,
  );
  const part = choice("What is broken", []);
  const form = element(
    "form",
    { class: "lab-form", "aria-label": "what to step through" },
    kernel.field,
    part.field,
    element("button", { type: "submit", class: "lab-button" }, "Record a run"),
  );
  const status = element("p", { role: "status", class: "lab-status" });
  const stepper = element("div", { class: "lab-results" });
  root.replaceChildren(form, status, stepper);
  const chosen = () => {
    const name = kernel.select.value;
    return shelf.asset(/** @type {any} */ (shelf.steps.find((s) => s.kernel === name)).asset);
  };
  const show_parts = async () => {
    const broken = /** @type {Partial<Broken>} */ (await chosen());
    part.field.hidden = !broken.parts;
    set_options(part.select, part_options(broken.parts ?? []), "0");
  };
  let runs = 0; // only the last run that was asked for is shown
  const record = async () => {
    const run = ++runs;
    status.textContent = "The kernel runs.";
    stepper.replaceChildren();
    try {
      const stepped = /** @type {Stepped & Partial<Broken>} */ (await chosen());
      const off = stepped.parts ? Number(part.select.value) : undefined;
      const job = { module: stepped.module, plan: stepped.cases.recorded, seed: 0, off };
      const asked = { ...job, kind: "normal", traced: true };
      const { events, error } = await run_apart(asked, shelf, () => {});
      if (run !== runs) return;
      status.textContent =
        error === null
          ? `The run of ${stepped.kernel} has ${events.length} words in which threads met.`
          : `The checks have stopped the kernel: ${error}`;
      new Stepper(stepper, stepped, events, error);
    } catch (error) {
      status.textContent = `The run failed: ${error instanceof Error ? error.message : error}`;
    }
  };
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    record();
  });
  kernel.select.addEventListener("change", async () => {
    stepper.replaceChildren();
    status.textContent = "";
    await show_parts();
  });
  new IntersectionObserver(async (seen, observer) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    await show_parts();
    if (runs === 0) record();
  }).observe(root);
}
