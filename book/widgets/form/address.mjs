// What a reader chose in a page's widgets, kept in the page's address: a link to it shows the same.

const LONGEST = 400; // letters of a value; longer texts are not kept

let restoring = false;

/** @typedef {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} Control */

/** The name of a control: the words of its label. @param {Control} control */
const name_of = (control) =>
  (control.labels?.[0]?.textContent ?? control.getAttribute("aria-label") ?? "")
    .toLowerCase()
    .replace(/\W+/g, "_");

/** The names and values of an address; its fragment may also be the name of a section. */
const kept = () =>
  new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : undefined);

/** @param {HTMLElement} root */
const controls_of = (root) =>
  /** @type {Control[]} */ ([...root.querySelectorAll("select, input, textarea")]);

/**
 * Gives a widget's controls the values of the address, in their order, since one may decide what
 * the next one offers. @param {HTMLElement} root @param {string} [of]  the name of the widget
 * @returns {boolean} whether there were any
 */
export function restore(root, of = root.dataset.labWidget) {
  const names = new Map();
  for (const [key, value] of kept()) {
    const [widget, name] = key.split(".");
    if (widget === of && name) names.set(name, value);
  }
  const some = names.size > 0;
  for (;;) {
    const next = controls_of(root).find((control) => names.has(name_of(control)));
    if (!next) return some;
    const value = names.get(name_of(next));
    names.delete(name_of(next));
    if (next instanceof HTMLSelectElement && ![...next.options].some((o) => o.value === value))
      continue;
    next.value = value;
    for (const event of ["input", "change"])
      next.dispatchEvent(new Event(event, { bubbles: true }));
  }
}

/** Keeps what a reader chooses in a widget. @param {HTMLElement} root */
export function keep(root) {
  root.addEventListener("input", (event) => {
    if (restoring) return;
    const control = /** @type {Control} */ (event.target),
      values = kept(),
      key = `${root.dataset.labWidget}.${name_of(control)}`;
    if (control.value.length > LONGEST) values.delete(key);
    else values.set(key, control.value);
    history.replaceState(null, "", `#${values}`);
  });
}
