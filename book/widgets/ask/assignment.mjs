// An assignment: the reader writes lines of a kernel, and the page's Python checks them.
import { element } from "../elements.mjs";
import { MEGABYTES } from "../python/session.mjs";
import { editor } from "./editor.mjs";
import { on_change, save, saved } from "./progress.mjs";
import { lines_of } from "./question.mjs";
import { step_answer } from "./step_answer.mjs";

const LINE = /^Line (\d+)\b|line (\d+) of your answer/;
const NOTE =
  `"Check" loads Python with NumPy (${MEGABYTES} MB) and a C++ compiler, once, and grades your ` +
  "lines here: nothing is sent anywhere. A kernel compiles for seconds.";

/**
 * @typedef {{name: string, starter: string, hints: string[],
 *   steps?: import("./step_answer.mjs").Steps}} Assignment
 */

/** @param {HTMLElement} root @param {import("../python/session.mjs").Session} session */
export function mount_assignment(root, session) {
  /** @type {Assignment} */
  const { name, starter, hints, steps } = JSON.parse(root.dataset.assignment ?? "");
  const code = editor("Your lines", starter);
  const quiet = { type: "button", class: "lab-button lab-quiet" };
  const check = element("button", { type: "submit", class: "lab-button" }, "Check");
  const step = element("button", { ...quiet, hidden: !steps }, "Step");
  const stop = element("button", { ...quiet, hidden: true }, "Stop");
  const reset = element("button", quiet, "Reset");
  const hint = element("button", quiet, "Hint");
  const form = element(
    "form",
    { class: "lab-form", "aria-label": `answer to ${name}` },
    code.field,
    check,
    step,
    stop,
    hint,
    reset,
  );
  const status = element("p", { role: "status", class: "lab-status" });
  const said = element("div", { "aria-live": "polite", class: "lab-said" });
  const stepped = element("div", { class: "lab-results" });
  const list = element("ol", { "aria-live": "polite", "aria-label": "hints" });
  const refresh = () => {
    code.set(/** @type {string} */ (saved(name)?.given[0] ?? starter));
    said.replaceChildren();
    list.replaceChildren();
    hint.hidden = false;
  };
  const keep = (/** @type {boolean} */ passed) =>
    save(name, { given: [code.input.value], passed: passed || (saved(name)?.passed ?? false) });
  const say = (/** @type {string} */ words) => (status.textContent = words);
  /** Asks Python, while no other question is asked. @param {() => Promise<void>} question */
  const act = async (question) => {
    if (check.disabled) return;
    check.disabled = step.disabled = true;
    stop.hidden = false;
    said.replaceChildren();
    stepped.replaceChildren();
    try {
      await question();
      say("");
    } catch (error) {
      say(`The check ended: ${error instanceof Error ? error.message : error}`);
    } finally {
      check.disabled = step.disabled = false;
      if (document.activeElement === stop) check.focus();
      stop.hidden = true;
    }
  };
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    act(async () => {
      keep(false);
      const question = { ask: "check", name, answer: code.input.value };
      const report = await session.ask(question, say, { known: `assignment.${name}` });
      said.replaceChildren(...lines_of(report), ...place_of(report.lines, code));
      keep(report.passed);
    });
  });
  step.addEventListener("click", () => {
    if (steps) act(() => step_answer(stepped, session, name, steps, code.input.value, say));
  });
  stop.addEventListener("click", () => session.stop());
  code.input.addEventListener("input", () => keep(false));
  hint.addEventListener("click", () => {
    list.append(element("li", {}, hints[list.childElementCount]));
    hint.hidden = list.childElementCount === hints.length;
    if (hint.hidden) code.input.focus();
  });
  reset.addEventListener("click", () => {
    save(name, null);
    refresh();
    code.input.focus();
  });
  on_change((changed) => {
    if (changed === name && saved(name) === null) refresh();
  });
  const note = element("p", { class: "lab-note" }, NOTE);
  root.replaceChildren(note, form, status, said, stepped, list);
  refresh();
}

/**
 * A button that goes to the first of the reader's lines that a report names.
 * @param {string[]} lines @param {ReturnType<typeof editor>} code
 */
function place_of(lines, code) {
  const found = lines.map((text) => LINE.exec(text)).find((match) => match !== null);
  if (!found) return [];
  const line = Number(found[1] ?? found[2]);
  const button = element(
    "button",
    { type: "button", class: "lab-button lab-quiet" },
    `Go to line ${line}`,
  );
  button.addEventListener("click", () => code.go_to(line));
  return [button];
}
