// Elements of a page, made in one call each.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} name
 * @param {Record<string, any>} properties  of the element; `class` and `aria-*` are attributes
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties))
    if (key === "class" || key.includes("-") || key === "role" || key === "scope" || key === "for")
      made.setAttribute(key, value);
    else /** @type {any} */ (made)[key] = value;
  made.append(...children);
  return made;
}

/**
 * @param {string} name @param {Record<string, string | number>} attributes @param {string} text
 */
export function svg(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text) made.textContent = text;
  return made;
}

let count = 0;

/**
 * A control of a form below its label. @param {string} label @param {HTMLElement} control
 * @returns {HTMLElement}
 */
export function label_of(label, control) {
  control.id ||= `lab-${++count}`;
  return element(
    "div",
    { class: "lab-field" },
    element("label", { for: control.id }, label),
    control,
  );
}

/**
 * A labelled choice. @param {string} label @param {{value: string, text: string}[]} options
 * @param {string} chosen
 */
export function choice(label, options, chosen = "") {
  const select = element("select");
  set_options(select, options, chosen);
  return { select, field: label_of(label, select) };
}

/**
 * Options whose texts are their values. @param {Iterable<string | number>} values
 */
export const options_of = (values) =>
  [...new Set(values)].map((value) => ({ value: String(value), text: value.toLocaleString("en") }));

/**
 * Sets the options of a choice, and keeps what was chosen if that is still offered.
 * @param {HTMLSelectElement} select @param {{value: string, text: string}[]} options
 */
export const keep_options = (select, options) =>
  set_options(
    select,
    options,
    options.some(({ value }) => value === select.value) ? select.value : options[0].value,
  );

/**
 * @param {HTMLSelectElement} select @param {{value: string, text: string}[]} options
 * @param {string} chosen
 */
export function set_options(select, options, chosen = "") {
  select.replaceChildren(
    ...options.map(({ value, text }) =>
      element("option", { value, selected: value === chosen }, text),
    ),
  );
}

/**
 * A labelled field for a short answer. @param {string} label
 * @param {Record<string, any>} properties  of the input
 */
export function short_answer(label, properties) {
  const input = element("input", { required: true, autocomplete: "off", ...properties });
  return { input, field: label_of(label, input) };
}

/** @param {string} title @param {boolean} open @param {...(Node | string)} content */
export const details = (title, open, ...content) =>
  element("details", { open }, element("summary", {}, title), ...content);

/**
 * Whether a cell is words or a formula, not a number.
 * @param {string | Node} cell
 */
const is_text = (cell) =>
  typeof cell === "string" && !/^(–|[<>]?-?[\d.,]+(e[+-]\d+)?( %)?)$/.test(cell);

/** @param {boolean} left  whether the words of a cell begin at its left */
const side = (left) => (left ? { class: "lab-text" } : {});

/**
 * A table with a caption; its first column names the rows.
 * @param {string} caption @param {string[]} heads @param {(string | Node)[][]} rows
 */
export function table(caption, heads, rows) {
  const head = element(
    "tr",
    {},
    ...heads.map((text, i) =>
      element("th", { scope: "col", ...side(rows.every((row) => is_text(row[i]))) }, text),
    ),
  );
  const body = rows.map(([name, ...cells]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      ...cells.map((cell) => element("td", side(is_text(cell)), cell)),
    ),
  );
  const made = element(
    "table",
    { class: "lab-table" },
    element("caption", {}, caption),
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
  return element(
    "div",
    { class: "lab-scroll", tabIndex: 0, role: "region", "aria-label": caption },
    made,
  );
}
