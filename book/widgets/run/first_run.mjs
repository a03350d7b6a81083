// The run with which the book begins: a kernel fills its blocks, has an H200's bits, and is broken.
import { element } from "../elements.mjs";
import { run_apart, runner } from "../form/runner.mjs";

const KERNEL = "decode_mma.fp16.d64",
  FIRST_BUG = 1;

/** @param {HTMLElement} root @param {import("../run_kernel.mjs").Shelf} shelf */
export function mount_first_run(root, shelf) {
  const blocks = element("div", { class: "lab-blocks", "aria-hidden": "true" });
  const said = element("div", { "aria-live": "polite" });
  const fill = (/** @type {number} */ done, /** @type {number} */ all) => {
    while (blocks.childElementCount < all) blocks.append(element("span"));
    for (let i = 0; i < all; ++i) blocks.children[i].classList.toggle("lab-done", i < done);
  };
  const tell = (/** @type {string} */ kind, /** @type {string} */ words) =>
    said.append(element("p", { class: kind }, words));
  const whole = runner("Run a kernel", async ({ say, signal, progress }) => {
    said.replaceChildren();
    broken.say("");
    const { module, cases } = await shelf.asset(KERNEL),
      plan = cases.recorded,
      n = plan.grid.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b);
    fill(0, n);
    const job = { module, plan, seed: 0, kind: "normal" };
    const { error, sum, milliseconds } = await run_apart(
      job,
      shelf,
      (done, all) => {
        fill(done, all);
        progress(done, all);
      },
      signal,
    );
    fill(n, n);
    say(`${n} blocks of decode_mma ran in ${(milliseconds / 1000).toFixed(2)} s, in this page.`);
    if (error !== null || sum !== plan.sha256)
      return tell("lab-error", error ?? "Some bits differ from the H200's, which must not happen.");
    tell("lab-good", "Equal to the H200 in every bit.");
    broken.button.hidden = false;
  });
  const broken = runner("Now break it", async ({ say, signal, progress }) => {
    said.replaceChildren();
    whole.say("");
    const { module, cases, parts } = await shelf.asset("broken"),
      job = { module, plan: cases.recorded, seed: 0, kind: "normal", off: FIRST_BUG };
    const { error } = await run_apart(job, shelf, progress, signal);
    say(
      `${parts[FIRST_BUG - 1].words}. The CPU machine checks every access, and stops the kernel:`,
    );
    tell("lab-error", error ?? "The checks find nothing, which must not happen.");
  });
  for (const { button, start } of [whole, broken]) button.addEventListener("click", start);
  broken.button.hidden = true;
  const buttons = [whole, broken].flatMap(({ button, stop }) => [button, stop]);
  const group = { class: "lab-form", role: "group", "aria-label": "a first run" };
  root.replaceChildren(
    element("div", group, ...buttons),
    blocks,
    whole.status,
    broken.status,
    said,
  );
}
