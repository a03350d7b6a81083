// The compiler's worker: the page gives it the packed compiler, or the module of an earlier worker.
import { CompileError } from "./diagnostics.mjs";
import { stream_of, unpacked } from "./pack.mjs";
import { Toolchain } from "./toolchain.mjs";

/** @type {Toolchain | null} */
let toolchain = null;

/** Compiles the bytes while they come. @param {string[]} packed @param {string} decoder */
async function compiled(packed, decoder) {
  const headers = { "content-type": "application/wasm" };
  return WebAssembly.compileStreaming(
    new Response(await stream_of(packed, decoder), { headers }),
  );
}

/** @param {any} given */
async function answer(given) {
  if (given.compile && toolchain) {
    const [name, edits, checked] = given.compile;
    return { compiled: await toolchain.compile(name, edits, checked) };
  }
  const program = given.program ?? (await compiled(given.packed, given.decoder));
  const { sources } = given,
    objects = async (/** @type {Record<string, string>} */ of) => ({
      waiting: await unpacked([of.waiting]),
      others: await unpacked([of.others]),
      machine: await unpacked([of.machine]),
    });
  const [plain, checked] = await Promise.all([objects(sources.plain), objects(sources.checked)]);
  toolchain = new Toolchain(program, { ...sources, plain, checked });
  return { program };
}

globalThis.onmessage = async ({ data }) => {
  try {
    postMessage(await answer(data));
  } catch (error) {
    if (error instanceof CompileError) postMessage({ diagnostics: error.diagnostics });
    else postMessage({ error: error instanceof Error ? error.message : String(error) });
  }
};
