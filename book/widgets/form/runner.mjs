// A button that starts a run, one that stops it, and how far it is. The focus stays where it is.
import { element } from "../elements.mjs";
import { run } from "../machine/jobs.mjs";

/**
 * @typedef {{say: (words: string) => void, signal: AbortSignal,
 *   progress: (done: number, blocks: number) => void}} Running
 * @typedef {{worker: () => Worker | null}} Workers
 */

const FRAME_MS = 40;

/**
 * The buttons, the bar and the status of a widget that runs kernels.
 * @param {string} words  of the button
 * @param {(running: Running) => Promise<void>} work
 */
export function runner(words, work) {
  const button = element("button", { type: "submit", class: "lab-button" }, words);
  const stop = element(
    "button",
    { type: "button", class: "lab-button lab-quiet", hidden: true },
    "Stop",
  );
  const bar = element("progress", {
    max: 1,
    value: 0,
    hidden: true,
    "aria-label": "blocks that are done",
  });
  const status = element("p", { role: "status", class: "lab-status" });
  const say = (/** @type {string} */ text) => (status.textContent = text);
  /** @type {AbortController | null} */
  let running = null;
  const shown = () => {
    button.setAttribute("aria-disabled", String(running !== null)); // disabled, it loses the focus
    if (running === null && document.activeElement === stop) button.focus();
    stop.hidden = bar.hidden = running === null;
    bar.value = 0;
  };
  const start = async () => {
    if (running) return;
    const { signal } = (running = new AbortController());
    const progress = (/** @type {number} */ done, /** @type {number} */ blocks) => {
      bar.value = done / blocks;
      say(`${done} of ${blocks} blocks are done.`);
    };
    shown();
    try {
      await work({ say, signal, progress });
    } catch (error) {
      const reason = error instanceof Error ? error.message : error;
      say(signal.aborted ? "The run was stopped." : `The run failed: ${reason}`);
    } finally {
      running = null;
      shown();
    }
  };
  const halt = () => running?.abort();
  stop.addEventListener("click", halt);
  return { button, stop, bar, status, say, start, halt };
}

/**
 * A form whose button starts the run.
 * @param {string} label @param {ReturnType<typeof runner>} of @param {...Node} fields
 */
export function run_form(label, of, ...fields) {
  const form = element(
    "form",
    { class: "lab-form", "aria-label": label, noValidate: true },
    ...fields,
    of.button,
    of.stop,
  );
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    of.start();
  });
  return form;
}

/**
 * Runs a job in a worker. Without a worker, the job runs in the page block by block, and the page
 * reacts between two blocks. Raises: what the job raises, and the signal's reason once it is given.
 * @param {import("../machine/jobs.mjs").Job} job @param {Workers} shelf
 * @param {(done: number, blocks: number) => void} progress @param {AbortSignal} [signal]
 * @returns {Promise<import("../machine/jobs.mjs").Result>}
 */
export function run_apart(job, shelf, progress, signal) {
  signal?.throwIfAborted();
  const worker = shelf.worker();
  if (worker === null) {
    let last = performance.now();
    return run(job, async (done, blocks) => {
      signal?.throwIfAborted();
      if (performance.now() - last < FRAME_MS) return;
      progress(done, blocks);
      await new Promise((resume) => setTimeout(resume));
      last = performance.now();
    });
  }
  return new Promise((resolve, reject) => {
    const end = (/** @type {() => void} */ then) => {
      worker.terminate();
      then();
    };
    signal?.addEventListener("abort", () => end(() => reject(signal.reason)));
    worker.onmessage = ({ data }) => {
      if (data.progress) return progress(data.progress[0], data.progress[1]);
      end(() => (data.error ? reject(new Error(data.error)) : resolve(data.result)));
    };
    worker.onerror = (event) => end(() => reject(new Error(event.message)));
    worker.postMessage(job);
  });
}
