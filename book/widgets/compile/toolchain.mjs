// Clang and the linker, compiled to WebAssembly, make a module of a kernel: the C++ becomes LLVM's
// IR, the IR a coroutine, the coroutine an object file, which is linked with the machine.
import { inline_what_waits, numbered_accesses, suspendable, waiting_in } from "./coroutine.mjs";
import { CompileError, KERNELS, diagnostics_of } from "./diagnostics.mjs";
import { run_program } from "../wasi/program.mjs";

/**
 * @typedef {{text: string, macros: Record<string, string | number>}} Unit  what is compiled
 * @typedef {{plain: Unit, checked: Unit, files: string[]}} Kernel
 * @typedef {{waiting: Uint8Array, others: Uint8Array, machine: Uint8Array}} Objects
 * @typedef {{kernels: Record<string, Kernel>, files: Record<string, string>,
 *   plain: Objects, checked: Objects}} Sources
 * @typedef {import("./diagnostics.mjs").Diagnostic} Diagnostic
 * @typedef {{wasm: Uint8Array, places: Record<string, string>, ms: number,
 *   steps: Record<string, number>, diagnostics: Diagnostic[]}} Compiled
 */

const words = (/** @type {string} */ text) => text.trim().split(/\s+/);
// The code of the machine takes most of a run, so a kernel's loops need not be unrolled: this
// halves the time of a compile.
const TARGET = words(`-cc1 -triple wasm32-unknown-wasip1 -target-cpu generic
  -target-feature +simd128 -target-feature +bulk-memory -target-feature +sign-ext
  -mframe-pointer=none -disable-free -discard-value-names
  -O1 -mllvm -pragma-unroll-threshold=0 -mllvm -unroll-threshold=0
  -mllvm -unroll-full-max-count=1`);
const LANGUAGE = words(`-x c++ -std=c++20 -fno-rtti -fgnuc-version=4.2.1 -fvisibility=hidden
  -ffp-contract=off -relaxed-aliasing -mconstructor-aliases -nostdsysteminc -nobuiltininc
  -I${KERNELS} -clear-ast-before-backend -fno-caret-diagnostics -ferror-limit 8`);
// What a beginner's mistake most often is; all else that is right C++ is let through.
const WARNINGS = words(`-Wno-everything -Wuninitialized -Wsometimes-uninitialized -Wself-assign
  -Wunused-value -Wunused-comparison -Wparentheses -Wdivision-by-zero -Warray-bounds
  -Wshift-count-overflow -Winfinite-recursion`);
const CHECKED = words(`-fsanitize=thread -mllvm -tsan-instrument-func-entry-exit=0
  -mllvm -tsan-instrument-atomics=0 -debug-info-kind=line-tables-only -dwarf-version=4
  -gno-column-info -fsanitize=array-bounds`);
const LINKED = words(`--no-entry --strip-all --initial-memory=${32 << 20} --export=lab_set_ex2
  machine.o others.o kernel.o -o linked.wasm`);
const SOURCE = "source.cpp",
  WAITING = "waiting.bc",
  OBJECT = "kernel.o";

export class Toolchain {
  /** @param {WebAssembly.Module} program @param {Sources} sources */
  constructor(program, sources) {
    this.program = program;
    this.sources = sources;
  }

  /**
   * Raises: CompileError.
   * @param {string} name  of a launch @param {Record<string, string>} edits  texts by path
   * @param {boolean} checked @returns {Promise<Compiled>}
   */
  async compile(name, edits, checked) {
    const kernel = this.sources.kernels[name],
      unit = kernel[checked ? "checked" : "plain"],
      objects = this.sources[checked ? "checked" : "plain"];
    /** @type {Record<string, number>} */
    const steps = {};
    const timed = async (/** @type {string} */ step, /** @type {() => any} */ made) => {
      const began = performance.now(),
        result = await made();
      steps[step] = performance.now() - began;
      return result;
    };
    /** @type {Record<string, string>} */
    const places = {};
    const began = performance.now(),
      front = await timed("front", () => this.#front(kernel, unit, edits, objects, checked));
    let ir = front.out;
    const waiting = waiting_in(ir);
    if (waiting.size > 0) {
      ir = inline_what_waits(ir, waiting);
      if (checked) {
        const noted = numbered_accesses(ir);
        ir = noted.ir;
        Object.assign(places, noted.places);
      }
      ir = (await timed("inline", () => this.#ir(ir))).out;
    }
    const object = await timed("object", () => this.#object(ir)),
      wasm = await timed("link", () => this.#linked(object, objects));
    const diagnostics = diagnostics_of(front.error);
    return { wasm, places, ms: performance.now() - began, steps, diagnostics };
  }

  /**
   * @param {string[]} args @param {Record<string, string | Uint8Array>} files
   * @returns {ReturnType<typeof run_program>}
   */
  async #run(args, files) {
    const text = new TextEncoder(),
      given = Object.entries(files).map(([path, content]) => [
        path,
        typeof content === "string" ? text.encode(content) : content,
      ]);
    const done = await run_program(this.program, ["llvm", ...args], Object.fromEntries(given));
    if (done.code === 0) return done;
    const said = diagnostics_of(done.error);
    if (said.length === 0) throw new Error(done.error.slice(0, 500) || `exit ${done.code}`);
    throw new CompileError(said);
  }

  /**
   * @param {Kernel} kernel @param {Unit} unit @param {Record<string, string>} edits
   * @param {Objects} objects @param {boolean} checked
   */
  #front(kernel, unit, edits, objects, checked) {
    const files = Object.fromEntries(
      kernel.files.map((path) => [`${KERNELS}/${path}`, edits[path] ?? this.sources.files[path]]),
    );
    const macros = Object.entries(unit.macros).map(([name, value]) => `-D${name}=${value}`);
    const own = [...macros, ...WARNINGS, ...(checked ? CHECKED : [])];
    const out = ["-emit-llvm", "-mlink-bitcode-file", WAITING, "-o", "-", SOURCE];
    return this.#run(["clang++", ...TARGET, ...LANGUAGE, ...own, ...out], {
      ...files,
      [SOURCE]: unit.text,
      [WAITING]: objects.waiting,
    });
  }

  /** @param {string} ir */
  #ir(ir) {
    return this.#run(["clang++", ...TARGET, "-x", "ir", "-emit-llvm", "-o", "-", "a.ll"], {
      "a.ll": ir,
    });
  }

  /** @param {string} ir */
  async #object(ir) {
    const how = ["-x", "ir", "-emit-obj", "-o", OBJECT, "a.ll"];
    const made = await this.#run(["clang++", ...TARGET, ...how], { "a.ll": suspendable(ir) });
    return made.file(OBJECT);
  }

  /** @param {Uint8Array} object @param {Objects} objects */
  async #linked(object, { machine, others }) {
    const made = await this.#run(["wasm-ld", ...LINKED], {
      [OBJECT]: object,
      "machine.o": machine,
      "others.o": others,
    });
    return made.file("linked.wasm");
  }
}
