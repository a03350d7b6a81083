// "Step it": one block from barrier to barrier, or word to word, forward and back.
import { choice, element, set_options } from "../elements.mjs";
import { restore } from "../form/address.mjs";
import { run_apart, run_form, runner } from "../form/runner.mjs";
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
  const stepper = element("div", { class: "lab-results" });
  const chosen = () => {
    const name = kernel.select.value;
    return shelf.asset(/** @type {any} */ (shelf.steps.find((s) => s.kernel === name)).asset);
  };
  const show_parts = async () => {
    const broken = /** @type {Partial<Broken>} */ (await chosen());
    part.field.hidden = !broken.parts;
    set_options(part.select, part_options(broken.parts ?? []), "0");
    restore(part.field, root.dataset.labWidget);
  };
  let first = true; // the first run may begin where an address says
  const running = runner("Record a run", async ({ say, signal, progress }) => {
    say("The kernel runs.");
    stepper.replaceChildren();
    const stepped = /** @type {Stepped & Partial<Broken>} */ (await chosen());
    const off = stepped.parts ? Number(part.select.value) : undefined;
    const job = { module: stepped.module, plan: stepped.cases.recorded, seed: 0, off };
    const asked = { ...job, kind: "normal", traced: true };
    const { events, error } = await run_apart(asked, shelf, progress, signal);
    say(
      error === null
        ? `The run of ${stepped.kernel} has ${events.length} words in which threads met.`
        : `The checks have stopped the kernel: ${error}`,
    );
    new Stepper(stepper, stepped, events, error);
    if (first) restore(stepper, root.dataset.labWidget);
    first = false;
  });
  const form = run_form("what to step through", running, kernel.field, part.field);
  root.replaceChildren(form, running.bar, running.status, stepper);
  kernel.select.addEventListener("change", async () => {
    running.halt();
    stepper.replaceChildren();
    running.say("");
    await show_parts();
  });
  new IntersectionObserver(async (seen, observer) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    await show_parts();
    running.start();
  }).observe(root);
}
