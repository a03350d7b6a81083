// What the machine's checks say of edited code, and what a stepper can show of it.
import { KERNELS } from "../compile/diagnostics.mjs";
import { element, table } from "../elements.mjs";
import { changed, hunks } from "./lines.mjs";
import { verdict_in_words } from "./results.mjs";

/**
 * @typedef {import("./edit_kernel.mjs").Entry} Entry
 * @typedef {import("../machine/jobs.mjs").Result} Result
 * @typedef {import("../machine/trace.mjs").Event} Event
 */

const PLACE = /\bat ([\w./]+\.cuh):(\d+)/g,
  SHORTEST = 2, // parts of a path that a place has
  CHUNKS = 8, // 16-byte pieces in a row of memory whose buffers are not known
  CHUNK_BYTES = 16;

/** The file of a place that the checks name. @param {Entry} entry @param {string} place */
function path_of(entry, place) {
  const end = place.split("/").slice(-SHORTEST).join("/");
  return Object.keys(entry.files).find((path) => `${KERNELS}/${path}`.endsWith(end));
}

/**
 * Lines that the reader has changed, in words.
 * @param {Entry} entry @param {Record<string, string>} texts
 */
export function changed_lines(entry, texts) {
  const places = Object.entries(changed(entry.files, texts)).flatMap(([path, text]) => {
    let moved = 0;
    return hunks(entry.files[path], text).map(([at, out, put]) => {
      const line = at + 1 + moved;
      moved += put.length - out;
      return `${path}:${line}`;
    });
  });
  return places.length === 0 ? "Nothing is changed." : `You changed ${places.join(", ")}.`;
}

/**
 * @param {Result} result @param {Entry} entry @param {Record<string, string>} texts
 * @returns {{words: string, shown: HTMLElement, marks: import("./editor.mjs").Mark[]}}
 */
export function said_of_check(result, entry, texts) {
  const { error, heads } = result;
  const title = element("p", { class: "lab-title" }, "The checks"),
    yours = element("p", {}, changed_lines(entry, texts));
  if (error !== null) {
    const marks = Array.from(error.matchAll(PLACE), ([, place, line]) => ({
      path: path_of(entry, place) ?? place,
      line: Number(line),
      column: 0,
      severity: "error",
      message: error,
    }));
    const stopped = element("p", { class: "lab-error" }, error);
    return {
      words: "The checks stop the kernel.",
      shown: element("section", {}, title, stopped, yours),
      marks,
    };
  }
  const rows = heads.map((head) => [
    `head ${head.name}`,
    head.error.toExponential(2),
    `${head.ratio.toPrecision(3)} times`,
    head.inside ? "rounding can do this" : "a bug",
  ]);
  const nothing =
    "The checks find no race, no read of bytes that no thread wrote, no access out of bounds and " +
    "no barrier that a thread misses.";
  const columns = ["head", "largest error", "of its bound, at most", "verdict"];
  return {
    words: "The checks find nothing wrong with memory and barriers.",
    shown: element(
      "section",
      {},
      title,
      element("p", {}, nothing),
      element(
        "p",
        { class: heads.every(({ inside }) => inside) ? "lab-good" : "lab-error" },
        verdict_in_words(result),
      ),
      table("Errors of the heads", columns, rows),
      yours,
    ),
    marks: [],
  };
}

/**
 * What a stepper needs, and what it cannot show of this code.
 * @param {Entry} entry @param {Record<string, string>} texts
 * @param {{smem_bytes: number, told: boolean}} built @param {Event[]} events
 */
export function steppable(entry, texts, built, events) {
  const missing = [],
    plan = { ...entry.launch, smem_bytes: built.smem_bytes };
  let { maps, barriers, rows } = entry;
  if (built.smem_bytes !== entry.launch.smem_bytes) {
    missing.push(
      "The struct in shared memory is another one, so its buffers have no names here: the " +
        "picture shows rows of 128 bytes.",
    );
    const whole = { name: "shared memory", byte: 0, line: 0, swizzled: false };
    const n = Math.floor(built.smem_bytes / CHUNK_BYTES / CHUNKS);
    const tile = { ...whole, rows: n, chunks: CHUNKS, format: entry.launch.attention.dtype };
    maps = [{ syncs: 0, tiles: [tile] }];
  }
  if (!built.told || rows.length === 0) {
    missing.push(
      "The softmax cannot be shown: the line that tells its numbers is not in this text.",
    );
    rows = [];
  }
  const count = Math.max(0, ...events.map((event) => event.barriers.length / 5));
  if (count !== barriers.length)
    barriers = Array.from({ length: count }, (_, i) => barriers[i] ?? `mbarrier ${i}`);
  const sources = Object.fromEntries(
    Object.entries(texts).map(([path, text]) => [
      `${KERNELS}/${path}`.split("/").slice(-SHORTEST).join("/"),
      text.split("\n"),
    ]),
  );
  const stepped = { kernel: entry.budget.kernel, cases: { recorded: plan }, maps, barriers, rows };
  return { stepped: /** @type {any} */ ({ ...stepped, sources }), missing };
}
