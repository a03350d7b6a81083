// What a reader has changed, line by line: as hunks, as the text of a diff, and as part of a link.
import { sha256 } from "../machine/formats.mjs";

/**
 * @typedef {[number, number, string[]]} Hunk  first line of the old text, from 0; how many lines
 *   leave; the lines that come in their place
 * @typedef {Record<string, string>} Texts  by the path of the file
 */

const CONTEXT = 2, // lines around a change
  LARGEST = 400_000; // characters of what a link holds

/** @param {string} before @param {string} after @returns {Hunk[]} */
export function hunks(before, after) {
  const old = before.split("\n"),
    now = after.split("\n");
  let first = 0,
    last = 0;
  while (first < old.length && first < now.length && old[first] === now[first]) ++first;
  const rest = Math.min(old.length, now.length) - first;
  while (last < rest && old[old.length - 1 - last] === now[now.length - 1 - last]) ++last;
  const a = old.slice(first, old.length - last),
    b = now.slice(first, now.length - last),
    common = lengths(a, b);
  /** @type {Hunk[]} */
  const found = [];
  /** @type {Hunk | null} */
  let open = null;
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      open = null;
      ++i;
      ++j;
      continue;
    }
    if (open === null) found.push((open = [first + i, 0, []]));
    if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) {
      ++open[1];
      ++i;
    } else open[2].push(b[j++]);
  }
  return found;
}

/**
 * How many lines the ends from each i and j have in common.
 * @param {string[]} a @param {string[]} b
 */
function lengths(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Int32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; --i)
    for (let j = b.length - 1; j >= 0; --j)
      table[i][j] =
        a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  return table;
}

/** The new text. @param {string} before @param {Hunk[]} changes */
export function applied(before, changes) {
  const lines = before.split("\n");
  for (const [at, out, put] of changes.toReversed()) lines.splice(at, out, ...put);
  return lines.join("\n");
}

/**
 * Lines that differ: those that left or those that came, whichever are more.
 * @param {Hunk[]} all
 */
export const count_of = (all) => all.reduce((n, [, out, put]) => n + Math.max(out, put.length), 0);

/**
 * The lines of a diff, each with its sign; a line of "@" begins each change.
 * @param {string} before @param {Hunk[]} changes
 */
export function diff_lines(before, changes) {
  const old = before.split("\n");
  return changes.flatMap(([at, out, put]) => [
    `@ line ${at + 1}`,
    ...old.slice(Math.max(0, at - CONTEXT), at).map((line) => `  ${line}`),
    ...old.slice(at, at + out).map((line) => `- ${line}`),
    ...put.map((line) => `+ ${line}`),
    ...old.slice(at + out, at + out + CONTEXT).map((line) => `  ${line}`),
  ]);
}

/** The files that differ. @param {Texts} originals @param {Texts} texts @returns {Texts} */
export const changed = (originals, texts) =>
  Object.fromEntries(Object.entries(texts).filter(([path, text]) => text !== originals[path]));

/** A short checksum of a text. @param {string} text */
const mark = (text) => sha256([new TextEncoder().encode(text)]).slice(0, 8);

/**
 * @param {Uint8Array} bytes @param {"CompressionStream" | "DecompressionStream"} way
 * @returns {Promise<Uint8Array>}
 */
async function through(bytes, way) {
  const pipe = new (/** @type {any} */ (globalThis)[way])("deflate-raw");
  const made = new Blob([/** @type {any} */ (bytes)]).stream().pipeThrough(pipe);
  return new Uint8Array(await new Response(made).arrayBuffer());
}

/**
 * The end of a link that says what has changed in a kernel.
 * @param {string} kernel @param {Texts} originals @param {Texts} texts
 */
export async function to_fragment(kernel, originals, texts) {
  const files = Object.entries(changed(originals, texts)).map(([path, text]) => [
    path,
    mark(originals[path]),
    hunks(originals[path], text),
  ]);
  const bytes = new TextEncoder().encode(JSON.stringify([kernel, files]));
  const packed = await through(bytes, "CompressionStream");
  const text = btoa(Array.from(packed, (byte) => String.fromCharCode(byte)).join(""));
  return `#edit=${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/**
 * The kernel and the texts of a link, or null if the link has none. Raises: Error that says why
 * the link cannot be read.
 * @param {string} fragment @param {(kernel: string) => Texts | undefined} originals_of
 */
export async function from_fragment(fragment, originals_of) {
  const packed = new URLSearchParams(fragment.slice(1)).get("edit");
  if (packed === null) return null;
  const unreadable = "The link's end has no edit that this page can read.";
  let kernel, files;
  try {
    const text = atob(packed.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = await through(
      Uint8Array.from(text, (c) => c.charCodeAt(0)),
      "DecompressionStream",
    );
    if (bytes.length > LARGEST) throw new Error(unreadable);
    [kernel, files] = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new Error(unreadable);
  }
  const originals = originals_of(kernel);
  if (!originals) throw new Error(`The link is for ${kernel}, which this page does not have.`);
  const texts = { ...originals };
  for (const [path, sum, changes] of files) {
    if (originals[path] === undefined || mark(originals[path]) !== sum)
      throw new Error(`The link was made for another version of ${path}, and was not opened.`);
    texts[path] = applied(originals[path], changes);
  }
  return { kernel: /** @type {string} */ (kernel), texts };
}

/** The functions of a text and their lines, from 1. @param {string} text */
export function functions_of(text) {
  const found = text.matchAll(/\bLAB_(?:DEVICE|KERNEL)\b(?:\([^)]*\))?[^;{()]*?(\w+)\(/g);
  return Array.from(found, (match) => ({
    name: match[1],
    line: text.slice(0, match.index).split("\n").length,
  }));
}
