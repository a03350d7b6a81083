// A question that the page checks: fields for the answer, "Check" and "Hint".
import { choice, element, short_answer } from "../elements.mjs";
import { judge } from "./answer.mjs";
import { on_change, save, saved } from "./progress.mjs";

const NUMBER = {
  pattern: "[+\\-]?(\\d+\\.?\\d*|\\.\\d+)([eE][+\\-]?\\d+)?",
  title: "a number, as 81.25 or 2e-3",
};
const WHOLE = { pattern: "[+\\-]?\\d{1,15}", title: "a whole number" };

/** @param {HTMLElement} root  has the question's table in data-question */
export function mount_question(root) {
  /** @type {import("./answer.mjs").Question} */
  const question = JSON.parse(root.dataset.question ?? "");
  const fields = question.parts.map((part, i) => field_of(part, i, question.parts.length));
  const hint = element("button", { type: "button", class: "lab-button lab-quiet" }, "Hint");
  const again = element("button", { type: "button", class: "lab-button lab-quiet" }, "Start again");
  const form = element(
    "form",
    { class: "lab-form", "aria-label": `answer to ${question.name}` },
    ...fields.map(({ field }) => field),
    element("button", { type: "submit", class: "lab-button" }, "Check"),
    hint,
    again,
  );
  const said = element("div", { "aria-live": "polite", class: "lab-said" });
  const hints = element("ol", { "aria-live": "polite", "aria-label": "hints" });
  const ask = element("p", { class: "lab-note" }, `The answer is ${question.asks}.`);
  const refresh = () => {
    const answer = saved(question.name);
    const kept = answer?.given?.length === fields.length ? answer : null;
    fields.forEach(({ input }, i) => (input.value = kept?.given[i] ?? ""));
    said.replaceChildren(...(kept ? lines_of(judge(question, kept.given)) : []));
    again.hidden = !kept;
    hints.replaceChildren();
    hint.hidden = false;
  };
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    const given = fields.map(({ input }, i) =>
      question.parts[i].choices ? input.value : Number(input.value),
    );
    const report = judge(question, given);
    said.replaceChildren(...lines_of(report));
    again.hidden = false;
    const before = saved(question.name)?.passed ?? false;
    save(question.name, { given, passed: before || report.passed });
  });
  hint.addEventListener("click", () => {
    hints.append(element("li", {}, question.hints[hints.childElementCount]));
    hint.hidden = hints.childElementCount === question.hints.length;
    if (hint.hidden) form.querySelector("input, select")?.focus();
  });
  again.addEventListener("click", () => {
    save(question.name, null);
    refresh();
    form.querySelector("input, select")?.focus();
  });
  on_change((name) => {
    if (name === question.name && saved(name) === null) refresh();
  });
  root.replaceChildren(ask, form, said, hints);
  refresh();
}

/** @param {import("./answer.mjs").Part} part @param {number} i @param {number} count */
function field_of({ choices, whole }, i, count) {
  const label = count === 1 ? "Your answer" : `Part ${i + 1}`;
  if (!choices) return short_answer(label, { inputMode: "decimal", ...(whole ? WHOLE : NUMBER) });
  const none = { value: "", text: "choose" };
  const options = [none, ...choices.map((value) => ({ value, text: value }))];
  const { select, field } = choice(label, options);
  select.required = true;
  return { input: select, field };
}

/**
 * What a report says; in the lines of a table each space counts.
 * @param {{passed: boolean, lines: string[]}} report
 */
export function lines_of({ passed, lines }) {
  const head = passed ? "Right." : "Not yet.";
  const made = [element("p", { class: passed ? "lab-good" : "lab-error" }, head)];
  for (const line of lines)
    if (!/ {2}|^--/.test(line)) made.push(element("p", {}, line));
    else if (made.at(-1).localName === "pre") made.at(-1).append(`\n${line}`);
    else made.push(element("pre", { class: "lab-source", tabIndex: 0 }, line));
  return made;
}
