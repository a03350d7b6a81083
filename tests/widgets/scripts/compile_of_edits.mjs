// node compile_of_edits.mjs CLANG FOLDER < given.json: modules or diagnostics of edited kernels.
// What each module makes of a case is told as check.mjs tells it.
import fs from "node:fs";
import { CompileError } from "../../../book/widgets/compile/diagnostics.mjs";
import { Toolchain } from "../../../book/widgets/compile/toolchain.mjs";
import { run } from "../../../book/widgets/machine/jobs.mjs";

const { sources, kernel, jobs, ex2, plan } = JSON.parse(fs.readFileSync(0, "utf8"));
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
for (const kind of ["plain", "checked"])
  for (const what of ["waiting", "others", "machine"])
    sources[kind][what] = bytes(sources[kind][what]);
const toolchain = new Toolchain(
  await WebAssembly.compile(fs.readFileSync(process.argv[2])),
  sources,
);
const found = [];
for (const { edits, checked } of jobs)
  try {
    const { wasm, places, diagnostics } = await toolchain.compile(kernel, edits, checked);
    const module = { wasm, ex2, places };
    const { error, sum } = await run({ module, plan, seed: 0, kind: "normal" }, async () => {});
    found.push({ error, sum, diagnostics });
  } catch (error) {
    if (!(error instanceof CompileError)) throw error;
    found.push({ diagnostics: error.diagnostics });
  }
process.stdout.write(JSON.stringify(found));
