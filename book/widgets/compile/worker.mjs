// The compiler's worker: the page gives it the packed compiler, or the module of an earlier worker.
import { CompileError } from "./diagnostics.mjs";
import { stream_of, unpacked } from "./pack.mjs";
import { Toolchain } from "./toolchain.mjs";

/** @type {Toolchain | null} */
let toolchain = null;

const WASM = { headers: { "content-type": "application/wasm" } };

/** What the browser keeps between visits, or null: a page from a disk has nothing. */
async function shelf() {
  try {
    return await caches.open("lab");
  } catch {
    return null;
  }
}

/**
 * The module of an earlier worker, or an earlier visit's, or of what came packed; else null.
 * @param {{program?: WebAssembly.Module, packed?: string[], decoder: string, key: string}} given
 */
async function loaded({ program, packed, decoder, key }) {
  if (program) return program;
  const kept = await shelf();
  if (!packed) {
    const found = await kept?.match(key);
    return found ? WebAssembly.compileStreaming(found) : null;
  }
  const stream = await stream_of(packed, decoder),
    [now, later] = kept ? stream.tee() : [stream, null];
  if (kept && later) keep(kept, key, later).catch(() => {}); // without it the next visit is slower
  return WebAssembly.compileStreaming(new Response(now, WASM));
}

/** @param {Cache} kept @param {string} key @param {ReadableStream} bytes */
async function keep(kept, key, bytes) {
  for (const old of await kept.keys()) await kept.delete(old);
  await kept.put(key, new Response(bytes, WASM));
}

/** @param {any} given */
async function answer(given) {
  if (given.compile && toolchain) {
    const [name, edits, checked] = given.compile;
    return { compiled: await toolchain.compile(name, edits, checked) };
  }
  const program = await loaded(given);
  if (program === null) return { program };
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
