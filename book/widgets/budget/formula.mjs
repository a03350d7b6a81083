// The formulas of a ledger, as labkernels.budget.quantity writes them in LaTeX, with other numbers
// put in: a tile may be tried that no kernel was compiled for.

/**
 * @typedef {{name: string, formula: string, amount: number, note: string, symbols: string,
 *   shares: string | null, phase: string | null}} Row
 * @typedef {Record<string, number>} Values  of symbols
 */

const COMMANDS = ["frac", "min", "max", "left\\\\lceil", "right\\\\rceil", "cdot", ","];
const TOKEN = new RegExp(
  `\\\\(?:${COMMANDS.join("|")})|[A-Za-z](?:_[A-Za-z])?|\\d+|[-+(){},]`,
  "y",
);

/** @param {string} text */
function tokens_of(text) {
  const tokens = [];
  const packed = text.replace(/\s+|\\;|\\left(?=\()|\\right(?=\))/g, "");
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < packed.length) {
    const at = TOKEN.lastIndex,
      found = TOKEN.exec(packed);
    if (!found) throw new RangeError(`formula ${text}: not understood at ${packed.slice(at)}`);
    tokens.push(found[0]);
  }
  return tokens;
}

/**
 * The value of a formula. Raises RangeError for a formula that is not understood, or if a division
 * leaves a remainder, as in Python.
 * @param {string} text @param {Values} values
 */
export function evaluate(text, values) {
  const tokens = tokens_of(text);
  let at = 0;
  const take = (/** @type {string} */ wanted) => {
    if (tokens[at++] !== wanted) throw new RangeError(`formula ${text}: ${wanted} is missing`);
  };
  /** @param {string} open @param {string} close @returns {number} */
  const group = (open, close) => {
    take(open);
    const value = sum();
    take(close);
    return value;
  };
  /** @param {string} name */
  const extreme = (name) => {
    take("(");
    const choices = [sum()];
    while (tokens[at] === ",") {
      ++at;
      choices.push(sum());
    }
    take(")");
    return name === "\\min" ? Math.min(...choices) : Math.max(...choices);
  };
  /** @param {boolean} rounded */
  const fraction = (rounded) => {
    take("\\frac");
    const above = group("{", "}"),
      below = group("{", "}");
    if (rounded) return Math.ceil(above / below);
    if (above % below !== 0)
      throw new RangeError(`${above} is not a multiple of ${below}: no such tile`);
    return above / below;
  };
  /** @returns {number} */
  const factor = () => {
    const token = tokens[at];
    if (token === "(") return group("(", ")");
    if (token === "\\frac") return fraction(false);
    if (token === "\\left\\lceil") {
      ++at;
      const value = fraction(true);
      take("\\right\\rceil");
      return value;
    }
    ++at;
    if (token === "\\min" || token === "\\max") return extreme(token);
    const value = /^\d/.test(token) ? Number(token) : values[token];
    if (value === undefined) throw new RangeError(`formula ${text}: ${token} has no value`);
    return value;
  };
  const product = () => {
    let value = factor();
    while (tokens[at] === "\\," || tokens[at] === "\\cdot") {
      ++at;
      value *= factor();
    }
    return value;
  };
  const sum = () => {
    let value = product();
    while (tokens[at] === "+" || tokens[at] === "-")
      value += tokens[at++] === "+" ? product() : -product();
    return value;
  };
  const value = sum();
  if (at !== tokens.length) throw new RangeError(`formula ${text}: not understood`);
  return value;
}

/**
 * A ledger with other numbers put in, and its total. Of lines that share a space, only the phase
 * with the largest sum counts. @param {Row[]} rows @param {Values} values
 */
export function ledger_of(rows, values) {
  const filled = rows.map((row) => ({ ...row, amount: evaluate(row.symbols, values) }));
  /** @type {Record<string, Record<string, number>>} */
  const unions = {};
  for (const { name, amount, shares, phase } of filled) {
    const phases = (unions[shares ? `union ${shares}` : `line ${name}`] ??= {});
    const key = phase ? `phase ${phase}` : `line ${name}`;
    phases[key] = (phases[key] ?? 0) + amount;
  }
  const total = Object.values(unions).reduce(
    (all, phases) => all + Math.max(...Object.values(phases)),
    0,
  );
  return { rows: filled, total };
}
