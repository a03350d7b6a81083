// "Break it": one bug of a kernel is switched on, and the machine's checks or the errors of the
// output say what is then wrong.
import { choice, element, table } from "./elements.mjs";
import { figures } from "./form/fields.mjs";
import { run_apart, run_form, runner } from "./form/runner.mjs";
import { errors_chart, decades_of } from "./run/chart.mjs";
import { part_options } from "./step/step_kernel.mjs";

/**
 * @param {HTMLElement} root
 * @param {import("./run_kernel.mjs").Shelf} shelf
 * @param {import("./step/step_kernel.mjs").Broken} broken
 */
export function mount_break_kernel(root, shelf, broken) {
  const part = choice("What is broken", part_options(broken.parts), "1");
  const results = element("div", { class: "lab-results" });
  const running = runner("Run with checks", async ({ say, signal, progress }) => {
    say("The kernel runs.");
    results.replaceChildren();
    const off = Number(part.select.value),
      plan = broken.cases.recorded;
    const job = { module: broken.module, plan, seed: 0, kind: "normal", off };
    show(await run_apart(job, shelf, progress, signal), say, results);
    const source = broken.parts[off - 1]?.source;
    if (source)
      results.append(
        element("p", {}, "A bug like it ", element("a", { href: source }, "was reported"), "."),
      );
  });
  const form = run_form("what is broken", running, part.field);
  root.replaceChildren(form, running.bar, running.status, results);
}

/**
 * @param {import("./machine/jobs.mjs").Result} result @param {(words: string) => void} say
 * @param {HTMLElement} results
 */
function show({ error, heads }, say, results) {
  if (error !== null) {
    say("The checks stop the kernel:");
    results.append(element("p", { class: "lab-error" }, error));
    return;
  }
  const outside = heads.filter((head) => !head.inside).length;
  say(
    outside === 0
      ? "The checks find nothing wrong, and every error is inside the bound of rounding."
      : `The checks find nothing wrong, but rounding alone cannot give these numbers: the errors ` +
          `of ${outside} of ${heads.length} heads exceed their bounds.`,
  );
  const rows = heads.map((head) => [
    `head ${head.name}`,
    head.error.toExponential(2),
    figures(head.ratio, 3),
    head.inside ? "rounding can do this" : "a bug",
  ]);
  const caption = "Errors of the heads",
    columns = ["head", "largest error", "error / bound, at most", "verdict"];
  results.append(errors_chart(heads, decades_of([heads]), "head"), table(caption, columns, rows));
}
