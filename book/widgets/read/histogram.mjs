// How far the elements of outputs are from what a tolerance allows, as histograms.
import { element, svg } from "../elements.mjs";

/** @typedef {import("../machine/jobs.mjs").Elements} Elements */

const LOWEST = -6, // powers of ten of an error over what is allowed
  HIGHEST = 4,
  PER_DECADE = 4,
  BINS = (HIGHEST - LOWEST) * PER_DECADE;
const WIDE = 8, // a bin
  HIGH = 36;

/**
 * How many elements have each size of |found - right| / (atol + rtol |right|): powers of ten from
 * LOWEST on, PER_DECADE bins each. The first bin has no error too, the last one NaN.
 * @param {Elements} elements @param {number} atol @param {number} rtol
 */
export function histogram({ found, right }, atol, rtol) {
  const bins = new Int32Array(BINS),
    line = -LOWEST * PER_DECADE;
  found.forEach((x, i) => {
    const error = Math.abs(x - right[i]),
      allowed = atol + rtol * Math.abs(right[i]);
    // an error that is allowed lies left of the line, where it may also be 0
    const size = Math.ceil((Math.log10(error / allowed) - LOWEST) * PER_DECADE) - 1;
    if (error <= allowed) ++bins[Math.min(Math.max(size, 0), line - 1)];
    else ++bins[size < BINS ? Math.max(size, line) : BINS - 1];
  });
  return bins;
}

/**
 * The name of a kernel and its histogram; elements right of the line are outside the tolerance.
 * @param {string} words @param {Int32Array} bins
 */
export function named_histogram(words, bins) {
  const most = Math.max(...bins),
    line = -LOWEST * PER_DECADE * WIDE;
  const picture = svg("svg", {
    viewBox: `0 0 ${BINS * WIDE} ${HIGH}`,
    class: "lab-histogram",
    "aria-hidden": "true", // the cells beside it say what matters
    preserveAspectRatio: "none",
  });
  const drawn = { inside: "", outside: "" };
  bins.forEach((n, bin) => {
    if (n === 0) return;
    const high = 3 + (HIGH - 3) * Math.sqrt(n / most); // one element is seen among hundreds
    drawn[bin * WIDE < line ? "inside" : "outside"] +=
      `M${bin * WIDE} ${HIGH}h${WIDE - 1}v${-high}h${1 - WIDE}z`;
  });
  for (const [kind, d] of Object.entries(drawn))
    picture.append(svg("path", { class: `lab-bar-${kind}`, d }));
  picture.append(svg("path", { class: "lab-line", d: `M${line} 0v${HIGH}` }));
  return element("div", {}, words, picture);
}

/** What the histograms show. */
export const HISTOGRAM_WORDS =
  "Below each kernel stand its elements, by the share of your tolerance that their error takes: " +
  "from a millionth at the left to 10,000 times at the right. The line is the whole of it.";
