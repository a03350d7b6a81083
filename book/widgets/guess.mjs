// "Guess, then see": a slider for what the reader expects, and the recorded number beside it.
// Nothing leaves the page.
import { element } from "./elements.mjs";

/** @param {HTMLElement} root  holds the question, and the answer in a <details> */
export function mount_guess(root) {
  const { unit = "", most = "1", step = "1", truth = "0" } = root.dataset;
  const question = /** @type {HTMLElement} */ (root.querySelector(".lab-question")),
    answer = /** @type {HTMLElement} */ (root.querySelector("details p"));
  question.id ||= `lab-guess-${[...document.querySelectorAll(".lab-guess")].indexOf(root)}`;
  const half = String(Number(most) / 2);
  const slider = element("input", { type: "range", min: "0", max: most, step, value: half });
  slider.setAttribute("aria-labelledby", question.id);
  const value = element("output", { class: "lab-value" });
  const say = () => {
    value.textContent = `${slider.value} ${unit}`;
    slider.setAttribute("aria-valuetext", value.textContent);
  };
  slider.addEventListener("input", say);
  say();
  const button = element("button", { type: "button", class: "lab-button" }, "See the measurement");
  const scale = element("div", { class: "lab-scale", hidden: true, "aria-hidden": "true" });
  const said = element("div", { role: "status", tabIndex: -1 });
  button.addEventListener("click", () => {
    const place = (/** @type {number} */ x) =>
      `${(100 * Math.min(x, Number(most))) / Number(most)}%`;
    const mark = (/** @type {string} */ kind, /** @type {string} */ at) => {
      const made = element("span", { class: kind });
      made.style.left = at;
      return made;
    };
    const measured = mark("lab-measured", place(Number(slider.value)));
    scale.replaceChildren(mark("lab-guessed", place(Number(slider.value))), measured);
    scale.hidden = false;
    requestAnimationFrame(() => (measured.style.left = place(Number(truth)))); // the mark moves
    said.replaceChildren(element("p", {}, `You guessed ${slider.value}. `, ...answer.childNodes));
    slider.disabled = true;
    button.remove();
    said.focus();
  });
  const row = element("div", { class: "lab-form" }, slider, value, button);
  root.replaceChildren(question, row, scale, said);
}
