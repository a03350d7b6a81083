// The fields for the reader's own numbers, which the form shows while these inputs are chosen.
import { element, lines } from "./elements.mjs";
import { decode, encode } from "./machine/formats.mjs";
import { OWN } from "./machine/launches.mjs";
import { ROLES, parse } from "./machine/own.mjs";

const FIRST = { q: "1", k: "0", v: "1" }; // equal weights, and an output of 1
const LABELS = { q: "Your q", k: "Your K", v: "Your V" };

/** @param {HTMLSelectElement} kind  of inputs @param {HTMLElement} seed  its field */
export function own_form(kind, seed) {
  const fields = {
    q: lines(LABELS.q, FIRST.q),
    k: lines(LABELS.k, FIRST.k),
    v: lines(LABELS.v, FIRST.v),
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
    ...ROLES.map((role) => fields[role].field),
    said,
  );
  const refresh = () => {
    root.hidden = kind.value !== OWN;
    seed.hidden = kind.value === OWN;
  };
  kind.addEventListener("change", refresh);
  refresh();

  /**
   * The reader's numbers, if these are chosen. Raises: Error that says what is wrong with them.
   * @param {import("./machine/launches.mjs").Attention} a
   */
  const read = (a) => {
    if (kind.value !== OWN) return undefined;
    said.textContent = "";
    for (const role of ROLES) fields[role].input.removeAttribute("aria-invalid");
    const own = { q: [0], k: [0], v: [0] };
    for (const role of ROLES)
      try {
        own[role] = parse(role, fields[role].input.value, a);
      } catch (error) {
        fields[role].input.setAttribute("aria-invalid", "true");
        fields[role].input.focus();
        throw error;
      }
    const rounded = ROLES.map((role) => {
      const kept = decode(a.dtype, encode(a.dtype, own[role]));
      const n = own[role].filter((x, i) => x !== kept[i]).length;
      return `${n.toLocaleString("en-US")} of ${LABELS[role].slice(-1)}`;
    });
    said.textContent = `Numbers that ${a.dtype} had to round: ${rounded.join(", ")}.`;
    return own;
  };
  return { root, read };
}
