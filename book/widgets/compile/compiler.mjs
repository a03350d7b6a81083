// The compiler as a page uses it: its files are loaded by a click, and it works in a worker.
import { CompileError } from "./diagnostics.mjs";

export { CompileError };

/**
 * @typedef {import("./toolchain.mjs").Compiled} Compiled
 * @typedef {{bytes: number, of: number, what: string}} Progress
 * @typedef {{parts: number[], editable: Record<string, string[]>, worker: string,
 *   decoder: string, key: string, sources: import("./toolchain.mjs").Sources}} Shipped  parts: the
 *   characters of each part of the compiler; key: of its bytes
 */

export const DOWNLOAD = "compiler"; // the asset of all but the compiler's own parts

/** Loads a script that brings an asset. @param {string} base @param {string} name */
function asset(base, name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script"),
      assets = (/** @type {any} */ (globalThis).lab_assets ??= {});
    script.src = `${base}${name}.js`;
    script.onload = () => {
      script.remove();
      resolve(assets[name]);
      delete assets[name]; // only the compiler keeps it
    };
    script.onerror = () => {
      script.remove();
      reject(new Error(`${name}.js was not found`));
    };
    document.head.append(script);
  });
}

export class Compiler {
  /**
   * @param {string} base  the folder of the assets, with a "/" at its end
   * @param {(progress: Progress) => void} on_progress
   */
  static async load(base, on_progress) {
    /** @type {Shipped} */
    const shipped = await asset(base, DOWNLOAD);
    const of = shipped.parts.reduce((a, b) => a + b, 0),
      what = "The compiler is loaded";
    let bytes = 0;
    on_progress({ bytes, of, what });
    const key = new URL(`${base}${DOWNLOAD}.wasm?${shipped.key}`, document.baseURI).href,
      compiler = new Compiler(shipped);
    if (await compiler.#begin({ key })) return compiler;
    const packed = await Promise.all(
      shipped.parts.map(async (n, i) => {
        const part = await asset(base, `${DOWNLOAD}.${i}`);
        bytes += n;
        on_progress({ bytes, of, what });
        return part;
      }),
    );
    on_progress({ bytes, of, what: "The compiler is unpacked" });
    await compiler.#begin({ key, packed });
    return compiler;
  }

  /** @type {Worker | null} */
  #worker = null;
  /** @type {WebAssembly.Module | null} */
  #program = null;
  /** @type {(reason: Error) => void} */
  #refuse = () => {};

  /** @param {Shipped} shipped */
  constructor(shipped) {
    this.shipped = shipped;
  }

  /** @param {object} given */
  #ask(given) {
    return new Promise((resolve, reject) => {
      const worker = /** @type {Worker} */ (this.#worker);
      this.#refuse = reject;
      worker.onmessage = ({ data }) => {
        if (data.diagnostics) reject(new CompileError(data.diagnostics));
        else if (data.error) reject(new Error(data.error));
        else resolve(data);
      };
      worker.onerror = (event) => reject(new Error(event.message));
      worker.postMessage(given);
    });
  }

  /** Whether the worker has the compiler then. @param {object} given */
  async #begin(given) {
    if (this.#worker === null) {
      const text = new Blob([this.shipped.worker], { type: "text/javascript" }),
        address = URL.createObjectURL(text);
      this.#worker = new Worker(address);
      URL.revokeObjectURL(address);
    }
    const { decoder, sources } = this.shipped,
      { program } = await this.#ask({ ...given, decoder, sources });
    this.#program = program;
    return program !== null;
  }

  /**
   * One compile runs at a time. Raises: CompileError; Error if stop() ends it.
   * @param {string} kernel  a name of sources() @param {Record<string, string>} edits  by path
   * @param {{checked?: boolean}} how @returns {Promise<Compiled>}
   */
  async compile(kernel, edits, { checked = false } = {}) {
    this.#known(kernel);
    if (this.#worker === null) await this.#begin({ program: this.#program });
    return (await this.#ask({ compile: [kernel, edits, checked] })).compiled;
  }

  /** Ends what the compiler does now; the next compile starts another worker. */
  stop() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#refuse(new Error("the compiler was stopped"));
  }

  /** A kernel's files that a reader may change, its own first. @param {string} kernel */
  sources(kernel) {
    this.#known(kernel);
    const { editable, sources } = this.shipped;
    return editable[kernel].map((path) => ({ path, original: sources.files[path] }));
  }

  /** @param {string} kernel */
  #known(kernel) {
    const names = Object.keys(this.shipped.sources.kernels);
    if (!names.includes(kernel))
      throw new Error(`kernel is ${kernel}; allowed: ${names.join(", ")}`);
  }
}
