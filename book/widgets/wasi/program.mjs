// Runs a program for WASI from its start to its end.
import { find, put } from "./folders.mjs";
import { Exit, System } from "./system.mjs";

/** @param {Uint8Array[]} parts */
const text_of = (parts) => {
  const words = new TextDecoder();
  return parts.map((part) => words.decode(part, { stream: true })).join("") + words.decode();
};

/**
 * What a program prints on stdout and stderr, its exit code, and its files.
 * @param {WebAssembly.Module} program @param {string[]} args
 * @param {Record<string, Uint8Array>} files  by path
 */
export async function run_program(program, args, files) {
  /** @type {import("./folders.mjs").Folder} */
  const root = new Map(),
    said = /** @type {Uint8Array[][]} */ ([[], [], []]);
  for (const [path, bytes] of Object.entries(files)) put(root, path, bytes);
  const system = new System(root, { args, write: (fd, bytes) => said[fd].push(bytes) }),
    imports = { wasi_snapshot_preview1: system.imports() };
  const { exports } = await WebAssembly.instantiate(program, imports);
  system.memory = /** @type {WebAssembly.Memory} */ (exports.memory);
  let code = 0;
  try {
    /** @type {() => void} */ (exports._start)();
  } catch (reason) {
    if (!(reason instanceof Exit)) throw reason;
    code = reason.code;
  }
  const file = (/** @type {string} */ path) =>
    /** @type {import("./folders.mjs").File} */ (find(root, path)).bytes;
  return { code, out: text_of(said[1]), error: text_of(said[2]), file };
}
