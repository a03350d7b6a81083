// Which questions a reader has answered. The browser keeps this, and nothing leaves it.
import { element } from "../elements.mjs";

const PREFIX = "labkernels.answer.",
  CHANGED = "lab-answered";

/** @typedef {{given: (number | string)[], passed: boolean}} Answer */

/** @param {string} name @returns {Answer | null} */
export function saved(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name) ?? "null");
  } catch {
    return null; // the browser keeps nothing, or another page has written there
  }
}

/** @param {string} name @param {Answer | null} answer  null: forget it */
export function save(name, answer) {
  try {
    if (answer === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(answer));
  } catch {
    return; // the browser keeps nothing
  }
  document.dispatchEvent(new CustomEvent(CHANGED, { detail: name }));
}

/** Calls back when an answer was saved or forgotten. @param {(name: string) => void} then */
export const on_change = (then) =>
  document.addEventListener(CHANGED, (event) => then(/** @type {CustomEvent} */ (event).detail));

/** @param {HTMLElement} root  names the questions of the book */
export function mount_progress(root) {
  /** @type {string[]} */
  const names = JSON.parse(root.dataset.names ?? "[]");
  const said = element("p", { role: "status" });
  const button = element("button", { type: "button", class: "lab-button" }, "Forget my answers");
  const count = () => {
    const answers = names.map(saved);
    const right = answers.filter((answer) => answer?.passed).length;
    said.textContent = `You have answered ${right} of ${names.length} questions in this browser.`;
    button.hidden = answers.every((answer) => answer === null);
  };
  button.addEventListener("click", () => names.forEach((name) => save(name, null)));
  on_change(count);
  count();
  root.replaceChildren(said, button);
}
