// The error of each head beside its bound, as a picture on a logarithmic scale.
import { svg } from "../elements.mjs";

/** @typedef {import("../machine/jobs.mjs").Group} Group */

const WIDTH = 320,
  HEIGHT = 150,
  LEFT = 44,
  TOP = 8,
  BOTTOM = 18,
  SIZE = 2.5; // of a mark
const LOWEST = -12, // powers of ten
  HIGHEST = 4;
const DOT = `a${SIZE} ${SIZE} 0 1 0 ${2 * SIZE} 0a${SIZE} ${SIZE} 0 1 0 ${-2 * SIZE} 0`,
  CROSS = `m0 ${-SIZE}l${2 * SIZE} ${2 * SIZE}m0 ${-2 * SIZE}l${-2 * SIZE} ${2 * SIZE}`;

/**
 * The powers of ten between which the errors and bounds of some runs lie.
 * @param {Group[][]} runs @returns {[number, number]}
 */
export function decades_of(runs) {
  const sizes = runs.flat().flatMap(({ error, bound }) => [error, bound]);
  const known = sizes.filter((x) => x > 0 && Number.isFinite(x)).map(Math.log10);
  const low = Math.max(Math.floor(Math.min(0, ...known)), LOWEST),
    high = Math.min(Math.ceil(Math.max(low, ...known)), HIGHEST); // a bound may be without limit
  return [low, Math.max(high, low + 1)];
}

/** @param {Group[]} groups @param {[number, number]} decades @param {string} name  of a group */
export function errors_chart(groups, [low, high], name) {
  const step = (WIDTH - LEFT) / groups.length;
  const y = (/** @type {number} */ size) => {
    const share = (Math.log10(size) - low) / (high - low),
      seen = Number.isNaN(share) ? 1 : Math.min(Math.max(share, 0), 1); // NaN stands at the top
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - seen);
  };
  const outside = groups.filter((group) => !group.inside).length;
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    class: "lab-chart",
    role: "img",
    "aria-label":
      `The largest error of each ${name} and its bound: ${outside} of ${groups.length} errors ` +
      "exceed their bounds. A table below says the same.",
  });
  for (let decade = low; decade <= high; ++decade) {
    const at = y(10 ** decade);
    picture.append(svg("path", { class: "lab-grid", d: `M${LEFT} ${at}H${WIDTH}` }));
    picture.append(svg("text", { x: LEFT - 6, y: at + 4, class: "lab-right" }, `1e${decade}`));
  }
  const drawn = { bound: "", inside: "", outside: "" };
  groups.forEach(({ error, bound, inside }, i) => {
    const x = LEFT + (i + 0.5) * step,
      at = y(error);
    drawn.bound += `M${x - 0.35 * step} ${y(bound)}h${0.7 * step}`;
    drawn[inside ? "inside" : "outside"] += `M${x - SIZE} ${at}${inside ? DOT : CROSS}`;
  });
  for (const [kind, d] of Object.entries(drawn))
    picture.append(svg("path", { class: `lab-${kind}`, d }));
  const words = `largest error of each ${name}, 0 to ${groups.length - 1}`;
  picture.append(svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, class: "lab-middle" }, words));
  return picture;
}
