// Elements of a page, made in one call each.

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

let count = 0;

/**
 * A labelled choice. @param {string} label @param {{value: string, text: string}[]} options
 * @param {string} chosen
 */
export function choice(label, options, chosen = "") {
  const id = `lab-${++count}`;
  const select = element("select", { id });
  set_options(select, options, chosen);
  return {
    select,
    field: element("div", { class: "lab-field" }, element("label", { for: id }, label), select),
  };
}

/**
 * @param {HTMLSelectElement} select @param {{value: string, text: string}[]} options
 * @param {string} chosen
 */
export function set_options(select, options, chosen) {
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
  const id = `lab-${++count}`;
  const input = element("input", { id, required: true, autocomplete: "off", ...properties });
  return {
    input,
    field: element("div", { class: "lab-field" }, element("label", { for: id }, label), input),
  };
}

/**
 * A labelled whole number. @param {string} label @param {number} value @param {number} min
 * @param {number} max
 */
export const number = (label, value, min, max) =>
  short_answer(label, { type: "number", value, min, max, step: 1 });

/**
 * A labelled field for many numbers. @param {string} label @param {string} value
 */
export function lines(label, value) {
  const id = `lab-${++count}`;
  const input = element("textarea", { id, value, rows: 2, spellcheck: false });
  return {
    input,
    field: element(
      "div",
      { class: "lab-field lab-wide" },
      element("label", { for: id }, label),
      input,
    ),
  };
}

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
