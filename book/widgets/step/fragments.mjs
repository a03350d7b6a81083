// The operands of one product, mma_m16n8k16, and which lane holds which element in which register.
import { element, svg, table } from "../elements.mjs";
import { figures } from "../form/fields.mjs";
import { decode } from "../machine/formats.mjs";
import { LANES, REGISTERS, elements_of } from "../machine/trace.mjs";

/** @typedef {"a" | "b" | "d"} Operand */

const CELL = 10,
  SHAPES = /** @type {const} */ ({ a: [16, 16], b: [16, 8], d: [16, 8] }),
  REGISTERS_OF = /** @type {const} */ ({ a: [0, 4], b: [4, 2], d: [6, 4] }),
  NAMES = /** @type {const} */ ({ a: "A, 16 x 16", b: "B, 16 x 8", d: "D = A B + C, 16 x 8" });

/**
 * The numbers of a lane's register: two of 16 bits, or one of 32.
 * @param {Uint32Array} lanes @param {Operand} operand @param {number} register
 * @param {number} lane @param {import("../machine/formats.mjs").Format} dtype
 */
function values(lanes, operand, register, lane, dtype) {
  const at = REGISTERS * lane + REGISTERS_OF[operand][0] + register;
  const bytes = new Uint8Array(lanes.slice(at, at + 1).buffer);
  return Array.from(decode(operand === "d" ? "fp32" : dtype, bytes));
}

/** @param {Operand} operand @param {number} chosen  the lane @param {string} format */
function grid(operand, chosen, format) {
  const [rows, columns] = SHAPES[operand],
    width = columns * CELL + 2,
    height = rows * CELL + 18;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "lab-fragment",
    role: "img",
    "aria-label": `${NAMES[operand]}: the elements of lane ${chosen} are marked`,
  });
  picture.style.setProperty("--lab-columns", String(columns));
  picture.append(svg("text", { x: 1, y: 12 }, `${NAMES[operand].split(",")[0]} (${format})`));
  let all = "",
    mine = "";
  for (let lane = 0; lane < LANES; ++lane)
    for (let register = 0; register < REGISTERS_OF[operand][1]; ++register)
      for (const { row, column } of elements_of(operand, register, lane)) {
        const path = `M${1 + column * CELL} ${17 + row * CELL}h9v9h-9z`;
        if (lane === chosen) mine += path;
        else all += path;
      }
  picture.append(svg("path", { class: "lab-others", d: all }));
  picture.append(svg("path", { class: "lab-mine", d: mine }));
  return picture;
}

/**
 * @param {Uint32Array} lanes @param {number} chosen  the lane
 * @param {import("../machine/formats.mjs").Format} dtype
 */
export function fragments(lanes, chosen, dtype) {
  /** @type {Operand[]} */
  const operands = ["a", "b", "d"];
  const rows = operands.flatMap((operand) =>
    Array.from({ length: REGISTERS_OF[operand][1] }, (_, register) => [
      `${operand}${register}`,
      elements_of(operand, register, chosen)
        .map(({ row, column }) => `row ${row}, column ${column}`)
        .join("; "),
      values(lanes, operand, register, chosen, dtype)
        .map((x) => figures(x))
        .join("; "),
    ]),
  );
  return element(
    "div",
    { class: "lab-fragments" },
    ...operands.map((operand) => grid(operand, chosen, operand === "d" ? "fp32" : dtype)),
    table(`Registers of lane ${chosen}`, ["register", "holds", "value"], rows),
  );
}
