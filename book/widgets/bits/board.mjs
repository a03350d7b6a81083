// The bits of a number as buttons: a press turns one of them over.
import { choice, element, options_of } from "../elements.mjs";
import { fields, number_of, round_to } from "./arithmetic.mjs";

/** @typedef {import("./arithmetic.mjs").Format} Format */

const PARTS = /** @type {const} */ (["sign", "exponent", "fraction"]);

/**
 * @param {Record<string, Format>} formats
 * @param {(x: number) => void} changed  is told the number of the bits after a press
 */
export function board_of(formats, changed) {
  const format = choice("Turn over the bits of", options_of(Object.keys(formats)), "fp16");
  const bits = element("div", { class: "lab-bits", role: "group" }),
    said = element("p", { class: "lab-note", role: "status" });
  const root = element(
    "div",
    { class: "lab-board" },
    element("div", { class: "lab-form" }, format.field),
    bits,
    said,
  );
  let number = 0;
  const buttons = () => /** @type {HTMLElement[]} */ ([...bits.querySelectorAll("button")]);
  const read = () => {
    const part = (/** @type {string} */ name) =>
      buttons()
        .filter((bit) => bit.dataset.part === name)
        .map((bit) => bit.textContent)
        .join("");
    const [sign, exponent, fraction] = PARTS.map(part);
    return number_of({ sign, exponent, fraction }, formats[format.select.value]);
  };
  const write = (/** @type {HTMLElement} */ bit, /** @type {string} */ value) => {
    bit.textContent = value;
    bit.setAttribute("aria-pressed", String(value === "1"));
  };
  const press = (/** @type {HTMLElement} */ bit) => {
    const before = bit.textContent ?? "";
    write(bit, before === "1" ? "0" : "1");
    const x = read();
    said.textContent = Number.isFinite(x) ? "" : `With that bit the number would be ${x}.`;
    if (Number.isFinite(x)) changed(x);
    else write(bit, before);
  };
  let built = "";
  const draw = () => {
    const of = formats[format.select.value],
      held = fields(round_to(number, of), of);
    if (built !== of.name) {
      let place = of.bits;
      const part_of = (/** @type {typeof PARTS[number]} */ part) =>
        [...held[part]].map(() => button(part, --place));
      bits.replaceChildren(
        ...PARTS.map((part) => element("span", { class: `lab-${part}` }, ...part_of(part))),
      );
      bits.setAttribute("aria-label", `bits of ${of.name}`);
      built = of.name;
    }
    const values = PARTS.map((part) => held[part]).join("");
    buttons().forEach((bit, i) => write(bit, values[i]));
  };
  const button = (/** @type {string} */ part, /** @type {number} */ place) => {
    const label = `bit ${place}, ${part}`;
    const bit = element("button", { type: "button", class: "lab-bit", "aria-label": label });
    bit.dataset.part = part;
    bit.tabIndex = part === "sign" ? 0 : -1; // arrow keys lead from bit to bit
    bit.addEventListener("click", () => press(bit));
    return bit;
  };
  bits.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[event.key];
    const all = buttons(),
      at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement)),
      next = all[at + (by ?? 0)];
    if (by === undefined || !next) return;
    event.preventDefault();
    [all[at].tabIndex, next.tabIndex] = [-1, 0];
    next.focus();
  });
  format.select.addEventListener("change", draw);
  return {
    root,
    show: (/** @type {number} */ x) => {
      number = x;
      said.textContent = "";
      draw();
    },
  };
}
