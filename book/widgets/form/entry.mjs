// A field of a form, which says beside itself what is wrong with what was typed.
import { element, label_of } from "../elements.mjs";
import { numbers_in, taken } from "./fields.mjs";

/** @typedef {import("./fields.mjs").Field} Field */

/**
 * A place below a control that says what is wrong with it; no words: nothing is wrong.
 * @param {HTMLElement} field @param {HTMLElement} control
 */
export function message_at(field, control) {
  const said = element("div", { class: "lab-wrong", role: "status", id: `${control.id}-said` });
  field.append(said);
  return (/** @type {string} */ words) => {
    if (said.textContent !== words) said.textContent = words;
    control.setAttribute("aria-invalid", String(words !== ""));
    control.setAttribute("aria-describedby", said.id);
  };
}

/** A labelled field, read by the declaration of what it takes. */
export class Entry {
  /**
   * @param {Field} takes @param {string | number} value
   * @param {{rows?: number}} [look]  rows: of a text that may be long
   */
  constructor(takes, value, { rows } = {}) {
    this.takes = takes;
    this.input = element(rows ? "textarea" : "input", {
      autocomplete: "off",
      spellcheck: false,
      ...(rows ? { rows } : takes.whole ? { type: "number", step: 1 } : {}),
      value,
    });
    this.field = label_of(takes.label, this.input);
    this.field.classList.toggle("lab-wide", rows !== undefined);
    this.refuse = message_at(this.field, this.input);
    this.limit({});
  }

  /** Changes what the field takes. @param {Partial<Field>} change */
  limit(change) {
    this.takes = { ...this.takes, ...change };
    const { whole, min, max } = this.takes;
    if (this.input.type === "number" && whole) Object.assign(this.input, { min, max });
  }

  /** @param {string | number} value */
  set(value) {
    this.input.value = value;
    this.refuse("");
  }

  /** The numbers of the field; null, once the field has said why, if the text is refused. */
  numbers() {
    try {
      if (this.input.validity.badInput)
        // its text is hidden from the page
        throw new RangeError(`The text is no number; this field takes ${taken(this.takes)}.`);
      const found = numbers_in(this.takes, this.input.value);
      this.refuse("");
      return found;
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.refuse(error.message);
      return null;
    }
  }

  /** The one number of the field, or null. */
  number() {
    return this.numbers()?.[0] ?? null;
  }
}

/**
 * The numbers of several fields by name; null if one of them is refused.
 * @template {Record<string, Entry>} T @param {T} entries
 * @returns {{[name in keyof T]: number} | null}
 */
export function numbers_of(entries) {
  const read = Object.entries(entries).map(([name, entry]) => [name, entry.number()]);
  return read.some(([, x]) => x === null) ? null : Object.fromEntries(read);
}
