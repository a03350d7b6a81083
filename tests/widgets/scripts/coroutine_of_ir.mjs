// node coroutine_of_ir.mjs < given.json: LLVM IR as the passes of a page rewrite it.
import fs from "node:fs";
import * as coroutine from "../../../book/widgets/compile/coroutine.mjs";

const given = JSON.parse(fs.readFileSync(0, "utf8"));
const { ir, places } = coroutine.numbered_accesses(given.numbered_accesses);
process.stdout.write(
  JSON.stringify({
    inline_what_waits: coroutine.inline_what_waits(given.inline_what_waits),
    numbered_accesses: [ir, places],
    suspendable: coroutine.suspendable(given.suspendable),
  }),
);
