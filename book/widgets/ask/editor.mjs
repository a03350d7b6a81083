// A field for lines of a program: Tab leaves it, as in any form, and its lines have numbers.
import { element } from "../elements.mjs";

let count = 0;

/** @param {string} label @param {string} value */
export function editor(label, value) {
  const id = `lab-editor-${++count}`;
  const input = element("textarea", {
    id,
    class: "lab-code",
    value,
    spellcheck: false,
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "off",
  });
  const numbers = element("pre", { class: "lab-lines", "aria-hidden": "true" });
  const refresh = () => {
    const n = input.value.split("\n").length;
    input.rows = Math.max(n + 1, 4);
    numbers.textContent = Array.from({ length: n }, (_, i) => i + 1).join("\n");
  };
  input.addEventListener("input", refresh);
  refresh();
  const field = element(
    "div",
    { class: "lab-field lab-wide" },
    element("label", { for: id }, label),
    element("div", { class: "lab-editor" }, numbers, input),
  );
  return {
    input,
    field,
    /** @param {string} text */
    set(text) {
      input.value = text;
      refresh();
    },
    /** Selects a line, from 1. @param {number} line */
    go_to(line) {
      const lines = input.value.split("\n"),
        begin = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
      input.focus();
      input.setSelectionRange(begin, begin + (lines[line - 1] ?? "").length);
    },
  };
}
