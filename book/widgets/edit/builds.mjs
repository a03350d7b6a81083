// Compiles what a reader has typed, once for each text; tells the compiler of a changed struct.
import { changed } from "./lines.mjs";

/**
 * @typedef {import("./editor.mjs").Mark} Mark
 * @typedef {{wasm: Uint8Array, ms: number, diagnostics: Mark[],
 *   places?: Record<string, string>}} Compiled
 * @typedef {{compile: (kernel: string, edits: Record<string, string>, how: {checked: boolean}) =>
 *   Promise<Compiled>, stop: () => void}} Compiler
 * @typedef {{bytes: number, of: number, what: string}} Progress
 * @typedef {(on: (progress: Progress) => void) => Promise<Compiler>} Load
 * @typedef {Compiled & {smem_bytes: number, told: boolean}} Built  smem_bytes: sizeof the struct;
 *   told: the module tells the softmax of its rows
 * @typedef {import("./edit_kernel.mjs").Entry} Entry
 */

const STRUCT = "the ledger's bytes are the compiler's"; // a static_assert of every kernel

export class Builds {
  /** @type {Promise<Compiler> | null} */
  #loading = null;
  /** @type {Compiler | null} */
  #compiler = null;
  /** @type {{key: string, built: Built}[]} */
  #made = [];

  #stops = 0;

  /** @param {Load} load */
  constructor(load) {
    this.load = load;
  }

  stop() {
    ++this.#stops;
    this.#compiler?.stop();
    if (this.#compiler === null) this.#loading = null;
  }

  /**
   * What was built of these texts before, or undefined.
   * @param {Entry} entry @param {Record<string, string>} texts @param {boolean} checked
   */
  known(entry, texts, checked) {
    const key = key_of(entry, texts, checked);
    return this.#made.find((one) => one.key === key)?.built;
  }

  /**
   * Raises: CompileError of the compiler, with diagnostics in the reader's own lines.
   * @param {Entry} entry @param {Record<string, string>} texts @param {boolean} checked
   * @param {(progress: Progress) => void} on @returns {Promise<Built>}
   */
  async build(entry, texts, checked, on) {
    const known = this.known(entry, texts, checked),
      turn = this.#stops;
    if (known) return known;
    const told = (/** @type {Progress} */ progress) => turn === this.#stops && on(progress);
    if (this.#compiler === null) {
      this.#loading ??= this.load(told);
      try {
        this.#compiler = await this.#loading;
      } catch (error) {
        this.#loading = null;
        throw error;
      }
    }
    if (turn !== this.#stops) throw new Error("the reader pressed Stop");
    on({ bytes: 0, of: 0, what: "compile" });
    const built = await this.#build(this.#compiler, entry, texts, checked);
    this.#made = [{ key: key_of(entry, texts, checked), built }, ...this.#made].slice(0, 4);
    return built;
  }

  /**
   * @param {Compiler} compiler @param {Entry} entry @param {Record<string, string>} texts
   * @param {boolean} checked
   */
  async #build(compiler, entry, texts, checked) {
    let smem_bytes = entry.launch.smem_bytes;
    for (;;) {
      const { edits, told } = prepared(entry, texts, checked, smem_bytes);
      try {
        const compiled = await compiler.compile(entry.budget.kernel, edits, { checked });
        return { ...compiled, smem_bytes, told };
      } catch (error) {
        const said = size_of_struct(/** @type {any} */ (error).diagnostics ?? []);
        if (said === null || smem_bytes !== entry.launch.smem_bytes) throw error;
        smem_bytes = said;
      }
    }
  }
}

/** @param {Entry} entry @param {Record<string, string>} texts @param {boolean} checked */
const key_of = (entry, texts, checked) =>
  JSON.stringify([entry.budget.kernel, checked, changed(entry.files, texts)]);

/**
 * The texts as the compiler gets them. The lines keep their numbers.
 * @param {Entry} entry @param {Record<string, string>} texts @param {boolean} checked
 * @param {number} smem_bytes
 */
export function prepared(entry, texts, checked, smem_bytes) {
  const given = { ...texts },
    source = Object.keys(entry.files)[0];
  let told = false;
  if (checked && entry.told) {
    const [file, old, by] = entry.told;
    told = given[file].split(old).length === 2;
    if (told) given[file] = given[file].replace(old, () => by);
  }
  if (smem_bytes !== entry.launch.smem_bytes)
    given[source] =
      `#undef LAB_SMEM_BYTES\n#define LAB_SMEM_BYTES ${smem_bytes}\n#line 1\n` + given[source];
  return { edits: changed(entry.files, given), told };
}

/**
 * What the compiler says of the struct, if nothing else is wrong: its bytes, or null.
 * @param {Mark[]} diagnostics
 */
export function size_of_struct(diagnostics) {
  const errors = diagnostics.filter(({ severity }) => severity === "error");
  if (errors.length !== 1 || !errors[0].message.includes(STRUCT)) return null;
  const said = diagnostics.map(({ message }) => message.match(/evaluates to '(\d+)U?L* == \d+/));
  return Number(said.find((found) => found)?.[1] ?? NaN) || null;
}
