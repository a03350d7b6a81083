// CPython with NumPy, as WebAssembly: it answers questions of the pages, in a worker.
import { unpacked } from "../compile/pack.mjs";
import { from_base64 } from "../machine/formats.mjs";
import { KernelError, Machine } from "../machine/machine.mjs";
import { Recorder } from "../machine/trace.mjs";
import { put } from "../wasi/folders.mjs";
import { System } from "../wasi/system.mjs";

/**
 * @typedef {{wasm: string, library: string, labkernels: string, ex2: string, decoder: string,
 *   compiled: {source: Source, wasm: string, places: Record<string, string>}[]}} Parts  the first
 *   five are packed
 * @typedef {{header: string, instance: string, params: string}} Kernel
 * @typedef {{kernel: Kernel, edits: Record<string, string>}} Source
 * @typedef {{wasm: Uint8Array, places: Record<string, string>} | {error: string}} Compiled
 */

// The C code of the first three modules, and the last ones, are not in the page.
const BEGIN = `
import sys
sys.modules.update(dict.fromkeys(("_bz2", "_lzma", "_sqlite3", "torch", "triton", "pandas",
    "pyarrow", "scipy", "matplotlib")))
import zipfile
zipfile.ZipFile("/labkernels.zip").extractall("/lab")
sys.path.insert(0, "/lab")
import in_page`;
const ASK = `print("\\n" + in_page.answer(open("/question").read()))`;
const NO_ANSWER = -1,
  DONE = 0; // of host.call
const text = new TextEncoder();

/** @param {Uint8Array} bytes */
function to_base64(bytes) {
  let words = "";
  for (let i = 0; i < bytes.length; i += 1 << 14)
    words += String.fromCharCode(...bytes.subarray(i, i + (1 << 14)));
  return btoa(words);
}

export class Python {
  /** @param {Parts} parts */
  static async load(parts) {
    const [wasm, library, labkernels, ex2] = await Promise.all(
      [parts.wasm, parts.library, parts.labkernels, parts.ex2].map((part) =>
        unpacked([part], parts.decoder),
      ),
    );
    const python = new Python(ex2);
    put(python.root, "/usr/local/lib/python315.zip", library);
    put(python.root, "/labkernels.zip", labkernels);
    python.root.set("tmp", new Map());
    const imports = {
      wasi_snapshot_preview1: python.system.imports(),
      host: {
        call: (/** @type {number[]} */ ...given) => python.told(...given),
      },
    };
    const made = await WebAssembly.instantiate(wasm, imports);
    python.exports = /** @type {any} */ (made.instance.exports);
    python.system.memory = python.exports.memory;
    python.exports._initialize();
    for (const { source, wasm: made, places } of parts.compiled)
      python.keep(source, { wasm: from_base64(made), places });
    python.turn(BEGIN);
    return python;
  }

  /** @param {Uint8Array} ex2 */
  constructor(ex2) {
    this.ex2 = ex2;
    /** @type {import("../wasi/folders.mjs").Folder} */
    this.root = new Map();
    this.said = "";
    /** @type {Map<string, Compiled & {module?: WebAssembly.Module}>} */
    this.compiled = new Map();
    /** @type {Source | null} */
    this.wanted = null;
    /** @type {import("../machine/trace.mjs").Event[] | null} */
    this.events = null;
    /** @type {any} */
    this.exports = null;
    const words = new TextDecoder();
    this.system = new System(this.root, {
      env: ["TMPDIR=/tmp", "HOME=/tmp", "PYTHONTZPATH="],
      write: (_, bytes) => (this.said += words.decode(bytes)),
    });
  }

  /** The address of a copy of some bytes in Python's memory. @param {Uint8Array} bytes */
  copied(bytes) {
    const at = this.exports.host_alloc(bytes.length) >>> 0;
    this.system.bytes(at, bytes.length).set(bytes);
    return at;
  }

  /** What some lines of Python print. @param {string} code */
  turn(code) {
    const bytes = text.encode(code);
    this.said = "";
    const failed = this.exports.turn(this.copied(bytes), bytes.length) !== 0;
    if (failed || this.said.startsWith("Traceback"))
      throw new Error(`Python fails: ${this.said.slice(-2000)}`);
    return this.said;
  }

  /** Keeps what a compiler made of a source. @param {Source} source @param {Compiled} compiled */
  keep(source, compiled) {
    this.compiled.set(JSON.stringify([source.kernel, source.edits]), compiled);
  }

  /**
   * The answer to a question, or the source that has to be compiled first.
   * @param {any} question
   * @returns {{answer: any} | {wanted: Source}}
   */
  ask(question) {
    this.wanted = this.events = null;
    put(this.root, "/question", text.encode(JSON.stringify(question)));
    const said = this.turn(ASK).trimEnd();
    if (this.wanted !== null) return { wanted: this.wanted };
    const answer = JSON.parse(said.slice(said.lastIndexOf("\n") + 1));
    return { answer: this.events ? { ...answer, events: this.events } : answer };
  }

  /** What Python asks of the page: a launch. @param {...number} given */
  told(...given) {
    const [at, n, to, size] = given;
    const request = JSON.parse(this.system.text(at, n));
    const said = text.encode(JSON.stringify(this.launched(request)));
    const place = this.copied(said);
    if (place === 0) return NO_ANSWER;
    this.system.view.setUint32(to, place, true);
    this.system.view.setUint32(size, said.length, true);
    return DONE;
  }

  /**
   * @param {Source & {launch: import("../machine/machine.mjs").Launch,
   *   tensors: {name: string, bytes: string, written: boolean}[], traced: boolean}} request
   *   traced: what block 0 does is kept in `events`
   */
  launched({ kernel, edits, launch, tensors, traced }) {
    const found = this.compiled.get(JSON.stringify([kernel, edits]));
    if (found === undefined) {
      this.wanted = { kernel, edits };
      return { wanted: true };
    }
    if ("error" in found) return found;
    found.module ??= new WebAssembly.Module(/** @type {BufferSource} */ (found.wasm));
    const machine = Machine.start(found.module, this.ex2, found.places);
    const given = tensors.map((t) => ({ ...t, bytes: from_base64(t.bytes) }));
    const prepared = machine.prepare(launch, given);
    const recorder = traced ? new Recorder(machine, launch) : null;
    if (recorder) this.events = recorder.events;
    try {
      for (let i = 0; i < prepared.blocks; ++i) {
        machine.on_word = recorder && i === 0 ? recorder.on_word : () => {};
        prepared.run_block(i);
      }
    } catch (reason) {
      recorder?.end();
      if (!(reason instanceof KernelError) && !(reason instanceof WebAssembly.RuntimeError))
        throw reason;
      return { error: `: ${reason.message}` };
    }
    const written = tensors.filter((t) => t.written).map(({ name }) => name);
    return {
      written: Object.fromEntries(written.map((name) => [name, to_base64(prepared.read(name))])),
    };
  }
}

/** @type {Promise<Python> | null} */
let python = null;

/**
 * Answers a message of `session.mjs` in the worker. A message brings Python's parts, files, what a
 * compiler made, or a question; an answer says what is wanted or what was found.
 * @param {{parts?: Parts, dropped?: Uint8Array, known?: string, compiled?: {source: Source,
 *   made: Compiled}, question?: any}} message
 */
export async function served({ parts, dropped, known, compiled, question }) {
  if (parts) python = Python.load(parts);
  const there = await /** @type {Promise<Python>} */ (python);
  if (dropped) put(there.root, "/dropped", dropped);
  if (known) {
    put(there.root, "/known", from_base64(known));
    there.turn(`in_page.know(open("/known", "rb").read())`);
  }
  if (compiled) there.keep(compiled.source, compiled.made);
  return question ? there.ask(question) : { ready: true };
}
