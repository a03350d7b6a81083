// "Break it": one bug of a kernel is switched on, and the machine's checks or the errors of the
// output say what is then wrong.
import { choice, element, table } from "./elements.mjs";
import { run_apart } from "./run_kernel.mjs";
import { part_options } from "./step/step_kernel.mjs";

/**
 * @param {HTMLElement} root
 * @param {import("./run_kernel.mjs").Shelf} shelf
 * @param {import("./step/step_kernel.mjs").Broken} broken
 */
export function mount_break_kernel(root, shelf, broken) {
  const part = choice("What is broken", part_options(broken.parts), "1");
  const button = element("button", { type: "submit", class: "lab-button" }, "Run with checks");
  const form = element("form", { class: "lab-form", "aria-label": "what is broken" });
  const status = element("p", { role: "status", class: "lab-status" });
  const results = element("div", { class: "lab-results" });
  form.append(part.field, button);
  root.replaceChildren(form, status, results);
  form.addEventListener("submit", async (/** @type {Event} */ event) => {
    event.preventDefault();
    button.disabled = true;
    status.textContent = "The kernel runs.";
    results.replaceChildren();
    const off = Number(part.select.value);
    const job = {
      module: broken.module,
      plan: broken.cases.recorded,
      seed: 0,
      kind: "normal",
      off,
    };
    try {
      show(await run_apart(job, shelf, () => {}), status, results);
      const source = broken.parts[off - 1]?.source;
      if (source)
        results.append(
          element("p", {}, "A bug like it ", element("a", { href: source }, "was reported"), "."),
        );
    } catch (error) {
      status.textContent = `The run failed: ${error instanceof Error ? error.message : error}`;
    } finally {
      button.disabled = false;
    }
  });
}

/**
 * @param {import("./machine/jobs.mjs").Result} result @param {HTMLElement} status
 * @param {HTMLElement} results
 */
function show({ error, heads }, status, results) {
  if (error !== null) {
    status.textContent = "The checks stop the kernel:";
    results.append(element("p", { class: "lab-error" }, error));
    return;
  }
  const outside = heads.filter((head) => !head.inside).length;
  status.textContent =
    outside === 0
      ? "The checks find nothing wrong, and every error is inside the bound of rounding."
      : `The checks find nothing wrong, but rounding alone cannot give these numbers: the errors ` +
        `of ${outside} of ${heads.length} heads exceed their bounds.`;
  const rows = heads.map((head) => [
    `head ${head.name}`,
    head.error.toExponential(2),
    `${head.ratio.toPrecision(3)} times`,
    head.inside ? "rounding can do this" : "a bug",
  ]);
  results.append(
    table(
      "Errors of the heads",
      ["head", "largest error", "of its bound, at most", "verdict"],
      rows,
    ),
  );
}
