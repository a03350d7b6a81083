// How the explorer of formats shows numbers, and which formats it offers.
import { options_of } from "../elements.mjs";

const DIGITS = 9; // enough to tell all numbers of fp32 apart

/** @param {number} x @param {number} digits */
export function short(x, digits = DIGITS) {
  if (!Number.isFinite(x)) return String(x);
  const rounded = Number(x.toPrecision(digits));
  return rounded === 0 || (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e6)
    ? String(rounded)
    : rounded.toExponential();
}

/** The formats that tensor cores multiply. @param {import("./bits.mjs").Data} data */
export const names_of = ({ formats, units }) =>
  options_of(Object.keys(formats).filter((name) => units.sm_90[name]));
