// node edit_of_texts.mjs < given.json: what is made of edited texts, with a fake compiler.
import fs from "node:fs";
import { Builds } from "../../../book/widgets/edit/builds.mjs";
import { changed_lines, said_of_check, steppable } from "../../../book/widgets/edit/checks.mjs";
import * as lines from "../../../book/widgets/edit/lines.mjs";
import { bits_in_words, parted } from "../../../book/widgets/edit/results.mjs";

const STRUCT = "the ledger's bytes are the compiler's";
const { entry, texts, foreign, stops } = JSON.parse(fs.readFileSync(0, "utf8"));
const original = entry.files,
  source = Object.keys(original)[0];

/** What is said of a link that cannot be opened. */
async function refusal(fragment, files_of) {
  try {
    await lines.from_fragment(fragment, files_of);
    return "opened";
  } catch (error) {
    return error.message;
  }
}

const fragment = await lines.to_fragment("decode_mma", original, texts);
const opened = await lines.from_fragment(fragment, () => original);
const newer = { ...original, [source]: `${original[source]}// newer` };

/** A compiler that knows one error and the size of a struct. */
class Fake {
  calls = [];
  async compile(kernel, edits, how) {
    this.calls.push({ kernel, edits, how });
    const text = edits[source] ?? original[source];
    const failed = (diagnostics) => Object.assign(new Error("no"), { diagnostics });
    const at = { path: source, line: 1, column: 1 };
    if (text.includes("syntx")) throw failed([{ ...at, severity: "error", message: "syntx" }]);
    if (text.includes("float more[4]") && !text.startsWith("#undef"))
      throw failed([
        { ...at, severity: "error", message: `static assertion failed: ${STRUCT}` },
        { ...at, severity: "note", message: "expression evaluates to '43024 == 43008'" },
      ]);
    return { wasm: new Uint8Array(), ms: 1, diagnostics: [] };
  }
  stop() {}
}
const fake = new Fake();
let loads = 0;
const builds = new Builds(async () => (++loads, fake));
const nothing = () => {};
const more = original[source].replace("union {", "float more[4];\n  union {");
const grown = { ...original, [source]: more };
const built = {
  plain: await builds.build(entry, texts, false, nothing),
  again: await builds.build(entry, texts, false, nothing),
  checked: await builds.build(entry, original, true, nothing),
  grown: await builds.build(entry, grown, true, nothing),
};
const calls = fake.calls.length;
const wrong = { ...original, [source]: `syntx\n${original[source]}` };
const error = await builds.build(entry, wrong, false, nothing).catch((no) => no.diagnostics);
const told = fake.calls.filter(({ how }) => how.checked).map(({ edits }) => edits[source]);
const shown = steppable(entry, grown, built.grown, []);

const a = { ...entry.launch.attention, q_lens: [1, 1], q_heads: 2, head_dim_v: 2 };
const numbers = Float64Array.of(1, 2, 3, 4, 5, 6, 7, NaN);
const there = { found: numbers, lse2: Float64Array.of(1, 2, 3, 4) };
const here = { found: there.found.slice(), lse2: there.lse2.slice() };
here.found[5] = 6 + 2 ** -7; // two steps of fp16
const apart = parted(here, there, a);
globalThis.document = { createElement: () => ({ setAttribute() {}, append() {} }) };
const found = stops.map((message) => {
  const { marks, words } = said_of_check({ error: message, heads: [] }, entry, texts);
  return { words, places: marks.map(({ path, line }) => `${path}:${line}`) };
});
process.stdout.write(
  JSON.stringify({
    is_same: JSON.stringify(opened) === JSON.stringify({ kernel: "decode_mma", texts }),
    fragment,
    plain: await lines.from_fragment("#three-experiments", () => original),
    refused: [
      await refusal("#edit=AAAA", () => original),
      await refusal(fragment, () => undefined),
      await refusal(fragment, () => newer),
    ],
    restored: foreign.map(([x, y]) => lines.applied(x, lines.hunks(x, y)) === y),
    counts: foreign.map(([x, y]) => lines.count_of(lines.hunks(x, y))),
    diff: lines.diff_lines(original[source], lines.hunks(original[source], texts[source])),
    places: lines.functions_of(original[source]).map(({ name }) => name),
    changed: changed_lines(entry, texts),
    loads,
    calls,
    reused: built.again === built.plain,
    smem_bytes: [built.plain.smem_bytes, built.grown.smem_bytes],
    is_told: [built.checked.told, told.every((text) => text.includes("lab_softmax"))],
    heads: fake.calls.map(({ edits }) => (edits[source] ?? "").split("\n").slice(0, 3)),
    error,
    missing: shown.missing,
    tiles: shown.stepped.maps[0].tiles,
    rows: shown.stepped.rows.length,
    apart,
    words: bits_in_words({ recorded: true, equal: false, parted: apart, a }),
    found,
  }),
);
