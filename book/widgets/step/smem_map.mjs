// Shared memory as a picture: a square per 16 bytes, drawn buffer by buffer.
import { element, svg } from "../elements.mjs";
import { IN_FLIGHT, UNWRITTEN, state_of, thread_of } from "../machine/trace.mjs";

/**
 * @typedef {{name: string, byte: number, rows: number, chunks: number, line: number, format:
 *   import("../machine/formats.mjs").Format | "u64", swizzled: boolean}} Tile  u64: mbarriers
 * @typedef {{tile: Tile, row: number, chunk: number}} Spot
 */

const CELL = 10,
  LOW_CELL = 4, // height of a square if a buffer has many rows
  MANY_ROWS = 32,
  GAP = 14,
  TITLE = 17,
  TITLE_WIDTH = 66,
  GAP_OF_SQUARES = 0.5,
  CHUNK = 16;
/** The number of a tile's 16-byte row. @param {Spot} spot */
export const row_of = ({ tile, row, chunk }) => tile.byte / CHUNK + row * tile.chunks + chunk;

/** How a 16-byte row is drawn. @param {number} seen */
function kind_of(seen) {
  const state = state_of(seen);
  if (state === UNWRITTEN) return "lab-unwritten";
  return state === IN_FLIGHT ? "lab-in-flight" : `lab-warp-${(thread_of(seen) >> 5) % 4}`;
}

/** @param {Tile[]} tiles */
const height_of_row = (tiles) => (tiles.some(({ rows }) => rows > MANY_ROWS) ? LOW_CELL : CELL);

/** Where the tiles lie in the picture. @param {Tile[]} tiles @param {number} cell  its height */
function places_of(tiles, cell) {
  let y = 0;
  /** @type {{tile: Tile, x: number, y: number}[]} */
  const places = [];
  let width = 0;
  for (const line of [...new Set(tiles.map((tile) => tile.line))]) {
    let x = 1,
      height = 0;
    for (const tile of tiles.filter((one) => one.line === line)) {
      places.push({ tile, x, y: y + TITLE });
      x += Math.max(tile.chunks * CELL, TITLE_WIDTH) + GAP;
      height = Math.max(height, tile.rows * cell);
    }
    width = Math.max(width, x - GAP);
    y += TITLE + height + GAP;
  }
  return { places, width: width + 1, height: y };
}

/** @param {number} x @param {number} y @param {number} gap  on each side @param {number} cell */
const square = (x, y, gap, cell = CELL) =>
  `M${x + gap} ${y + gap}h${CELL - 2 * gap}v${cell - 2 * gap}h${2 * gap - CELL}z`;

/**
 * The outline of what has changed in a tile: the sides between a row that has and one that has not.
 * @param {Tile} tile @param {Set<number>} changed @param {number} x @param {number} y
 * @param {number} cell  its height
 */
function outline({ byte, rows, chunks }, changed, x, y, cell) {
  const has = (/** @type {number} */ row, /** @type {number} */ chunk) =>
    chunk >= 0 &&
    chunk < chunks &&
    row >= 0 &&
    row < rows &&
    changed.has(byte / CHUNK + row * chunks + chunk);
  let path = "";
  for (let row = 0; row <= rows; ++row)
    for (let chunk = 0; chunk <= chunks; ++chunk) {
      const at = `M${x + chunk * CELL} ${y + row * cell}`;
      if (has(row, chunk) !== has(row - 1, chunk)) path += `${at}h${CELL}`;
      if (has(row, chunk) !== has(row, chunk - 1)) path += `${at}v${cell}`;
    }
  return path;
}

/**
 * @param {Tile[]} tiles @param {Uint32Array} seen @param {Set<number>} changed
 * @param {Spot | null} chosen @param {(spot: Spot) => void} choose
 */
export function draw_map(tiles, seen, changed, chosen, choose) {
  const cell = height_of_row(tiles),
    gap = cell === CELL ? GAP_OF_SQUARES : 0, // gaps between low squares would shimmer
    { places, width, height } = places_of(tiles, cell);
  /** @type {Record<string, string>} */
  const paths = {};
  const add = (/** @type {string} */ kind, /** @type {string} */ path) =>
    (paths[kind] = (paths[kind] ?? "") + path);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "lab-map",
    role: "img",
    "aria-label": "Shared memory; a table below says the same in words",
  });
  for (const { tile, x, y } of places) {
    picture.append(svg("text", { x, y: y - 4 }, tile.name.replace(" of warp ", ", w")));
    const size = { width: tile.chunks * CELL, height: tile.rows * cell };
    picture.append(svg("rect", { class: "lab-unwritten", x, y, ...size }));
    for (let row = 0; row < tile.rows; ++row)
      for (let chunk = 0; chunk < tile.chunks; ++chunk) {
        const number = row_of({ tile, row, chunk }),
          place = /** @type {const} */ ([x + chunk * CELL, y + row * cell]),
          kind = kind_of(seen[number]);
        if (kind !== "lab-unwritten") add(kind, square(...place, gap, cell));
        if (chosen && number === row_of(chosen)) add("lab-chosen", square(...place, 0, cell));
      }
    add("lab-changed", outline(tile, changed, x, y, cell));
  }
  const first = ["lab-changed", "lab-chosen"]; // drawn above the others
  const kinds = Object.keys(paths).sort((a, b) => first.indexOf(a) - first.indexOf(b));
  for (const kind of kinds) picture.append(svg("path", { class: kind, d: paths[kind] }));
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width,
      y = ((event.clientY - box.top) / box.height) * height;
    for (const place of places) {
      const chunk = Math.floor((x - place.x) / CELL),
        row = Math.floor((y - place.y) / cell),
        { tile } = place;
      if (chunk >= 0 && chunk < tile.chunks && row >= 0 && row < tile.rows)
        choose({ tile, row, chunk });
    }
  });
  return picture;
}

/** What the colours mean. @param {number} warps  that write @param {string} wrote */
export function legend(warps, wrote) {
  const kinds = [
    ["lab-unwritten", "no thread wrote it"],
    ["lab-in-flight", "a copy is in flight"],
    ...Array.from({ length: warps }, (_, w) => [`lab-warp-${w}`, `warp ${w} ${wrote} it`]),
    ["lab-changed", "changed since the stop before"],
  ];
  return element(
    "p",
    { class: "lab-legend" },
    ...kinds.map(([kind, text]) => {
      const sign = svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
      sign.append(svg("path", { class: kind, d: square(0, 0, 0.5) }));
      return element("span", {}, sign, ` ${text}`);
    }),
  );
}

/**
 * How many 16-byte rows of each buffer are unwritten or in flight, and the warps of all others.
 * @param {Tile[]} tiles @param {Uint32Array} seen
 */
export function counts(tiles, seen) {
  return tiles.map((tile) => {
    const first = tile.byte / CHUNK,
      rows = Array.from(seen.subarray(first, first + tile.rows * tile.chunks));
    const warps = new Set(
      rows.filter((row) => state_of(row) !== UNWRITTEN).map((row) => thread_of(row) >> 5),
    );
    return {
      tile,
      unwritten: rows.filter((row) => state_of(row) === UNWRITTEN).length,
      in_flight: rows.filter((row) => state_of(row) === IN_FLIGHT).length,
      all: rows.length,
      warps: [...warps].sort(),
    };
  });
}
