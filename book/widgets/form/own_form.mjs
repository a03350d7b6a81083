// The fields for the reader's own numbers, which the form shows while these inputs are chosen.
import { element } from "../elements.mjs";
import { LARGEST, decode, encode } from "../machine/formats.mjs";
import { OWN } from "../machine/launches.mjs";
import { ROLES } from "../machine/own.mjs";
import { Entry } from "./entry.mjs";
import { FIELDS, numbers_in } from "./fields.mjs";

/**
 * @typedef {import("../machine/launches.mjs").Attention} Attention
 * @typedef {import("../machine/own.mjs").Role} Role
 */

const FIRST = { q: "1", k: "0", v: "1" }; // equal weights, and an output of 1

/**
 * How many numbers a tensor has, and what its field takes.
 * @param {Role} role @param {Attention} a
 */
function tensor_of(role, a) {
  const tokens = (role === "q" ? a.q_lens : a.kv_lens).reduce((x, y) => x + y, 0),
    heads = role === "q" ? a.q_heads : a.kv_heads,
    channels = role === "v" ? a.head_dim_v : a.head_dim,
    all = tokens * heads * channels;
  const [sum, count] = [all, tokens].map((n) => n.toLocaleString("en"));
  const rows = `${count} ${role === "q" ? "queries" : "keys"} x ${heads} heads`;
  const takes = {
    min: -LARGEST[a.dtype],
    max: LARGEST[a.dtype],
    many: `1, ${channels} (a row) or ${sum} (${rows} x ${channels} channels) numbers`,
    counts: (/** @type {number} */ n) => [1, channels, all].includes(n),
  };
  return { all, takes };
}

/** @param {number[]} numbers @param {number} n */
const repeated = (numbers, n) => Array.from({ length: n }, (_, i) => numbers[i % numbers.length]);

/**
 * All numbers of a tensor. The text has all of them, a row for all rows, or one number for all.
 * Raises: RangeError with what is wrong, and what is taken.
 * @param {Role} role @param {string} text @param {Attention} a
 */
export function parse(role, text, a) {
  const { all, takes } = tensor_of(role, a);
  return repeated(numbers_in({ ...FIELDS[role], ...takes }, text), all);
}

/** @param {HTMLSelectElement} kind  of inputs @param {HTMLElement} seed  its field */
export function own_form(kind, seed) {
  const entries = {
    q: new Entry(FIELDS.q, FIRST.q, { rows: 2 }),
    k: new Entry(FIELDS.k, FIRST.k, { rows: 2 }),
    v: new Entry(FIELDS.v, FIRST.v, { rows: 2 }),
  };
  const said = element("p", { class: "lab-note" });
  const hint =
    "Type or paste numbers, separated by spaces, commas or new lines: one number for a whole " +
    "tensor, a row of head_dim numbers for each of its rows, or all numbers, query after query " +
    "or key after key, and head after head in each.";
  const root = element(
    "div",
    { class: "lab-wide", role: "group", "aria-label": "your numbers" },
    element("p", { class: "lab-note" }, hint),
    ...ROLES.map((role) => entries[role].field),
    said,
  );
  const refresh = () => {
    root.hidden = kind.value !== OWN;
    seed.hidden = kind.value === OWN;
  };
  kind.addEventListener("change", refresh);
  refresh();

  /**
   * The reader's numbers, if these are chosen; null, once a field has said why, if it refuses them.
   * @param {Attention} a
   */
  const read = (a) => {
    if (kind.value !== OWN) return undefined;
    said.textContent = "";
    const own = { q: [0], k: [0], v: [0] };
    for (const role of ROLES) {
      const { all, takes } = tensor_of(role, a);
      entries[role].limit(takes);
      const numbers = entries[role].numbers();
      if (numbers === null) {
        entries[role].input.focus();
        return null;
      }
      own[role] = repeated(numbers, all);
    }
    const rounded = ROLES.map((role) => {
      const kept = decode(a.dtype, encode(a.dtype, own[role]));
      const n = own[role].filter((x, i) => x !== kept[i]).length;
      return `${n.toLocaleString("en")} of ${FIELDS[role].label.slice(-1)}`;
    });
    said.textContent = `Numbers that ${a.dtype} had to round: ${rounded.join(", ")}.`;
    return own;
  };
  return { root, read };
}
