// A page's talk with its Python, which lives in a worker, and with the compiler.

/**
 * @typedef {import("./python.mjs").Source} Source
 * @typedef {{compile: (kernel: string, edits: Record<string, string>, how: {checked: boolean}) =>
 *   Promise<{wasm: Uint8Array, places: Record<string, string>}>, stop: () => void}} Compiler
 * @typedef {{asset: (name: string) => Promise<any>, worker: () => Worker | null,
 *   compiler: (progress: (words: string) => void) => Promise<Compiler>}} Shelf
 */

export const MEGABYTES = 7; // of python.js, as a server sends it without compression

const LONG_MS = 20_000;
const LONG = `Python judges for more than 20 seconds. A kernel may have a loop without an end:
  "Stop" ends it.`;

/** The session was stopped by the reader. */
export class Stopped extends Error {}

/** All widgets of a page share one session, which starts when the first question is asked. */
export class Session {
  /** @param {Shelf} shelf */
  constructor(shelf) {
    this.shelf = shelf;
    /** @type {Worker | null} */
    this.worker = null;
    /** @type {((reason: Error) => void) | null} */
    this.refuse = null;
    /** @type {Promise<Compiler> | null} */
    this.compiler = null;
    /** @type {Set<string>} */
    this.known = new Set();
  }

  /** Ends Python, whatever it does. The next question starts it again. */
  stop() {
    this.worker?.terminate();
    this.worker = null;
    this.known.clear();
    this.compiler?.then((compiler) => compiler.stop());
    this.refuse?.(new Stopped("Stopped."));
  }

  /** @param {any} message @returns {Promise<any>} */
  #said(message) {
    const worker = /** @type {Worker} */ (this.worker);
    return new Promise((resolve, reject) => {
      this.refuse = reject;
      worker.onmessage = ({ data }) =>
        data.error === undefined ? resolve(data.result) : reject(new Error(data.error));
      worker.onerror = ({ message: words }) => reject(new Error(words));
      worker.postMessage({ python: message });
    });
  }

  /** @param {(words: string) => void} progress */
  async #begin(progress) {
    if (this.worker !== null) return;
    progress(`Python is loading: ${MEGABYTES} MB.`);
    const parts = await this.shelf.asset("python");
    progress("Python starts.");
    this.worker = this.shelf.worker();
    if (this.worker === null) throw new Error("this browser allows no worker");
    await this.#said({ parts });
  }

  /**
   * The answer to a question of `in_page.py`.
   * @param {any} question @param {(words: string) => void} progress
   * @param {{known?: string, dropped?: Uint8Array}} needs  an asset of known results, or a file
   */
  async ask(question, progress, { known, dropped } = {}) {
    await this.#begin(progress);
    if (known && !this.known.has(known)) {
      await this.#said({ known: await this.shelf.asset(known) });
      this.known.add(known);
    }
    let message = /** @type {any} */ ({ question, dropped });
    for (;;) {
      progress("Python judges.");
      const late = setTimeout(() => progress(LONG), LONG_MS),
        said = await this.#said(message).finally(() => clearTimeout(late));
      if (said.wanted === undefined) return said.answer;
      const made = await this.#compiled(said.wanted, progress);
      message = { question, compiled: { source: said.wanted, made } };
    }
  }

  /** @param {Source} source @param {(words: string) => void} progress */
  async #compiled({ kernel, edits }, progress) {
    this.compiler ??= this.shelf.compiler(progress);
    try {
      const compiler = await this.compiler;
      progress(`A kernel is compiled: ${kernel.instance}.`);
      const { wasm, places } = await compiler.compile(kernel.instance, edits, { checked: true });
      return { wasm, places };
    } catch (reason) {
      /** @type {import("../compile/diagnostics.mjs").Diagnostic[] | undefined} */
      const diagnostics = /** @type {any} */ (reason).diagnostics;
      if (!diagnostics) {
        this.compiler = null;
        throw reason;
      }
      const lines = diagnostics.map(
        ({ path, line, column, severity, message }) =>
          `${path}:${line}:${column}: ${severity}: ${message}`,
      );
      return { error: ` does not compile: ${lines.join("\n")}` };
    }
  }
}
