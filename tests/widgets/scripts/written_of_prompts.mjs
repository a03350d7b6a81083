// node written_of_prompts.mjs < given.json: the bytes of both texts of each prompt and seed.
import fs from "node:fs";
import { written } from "../../../book/widgets/write/choice.mjs";

const { asset, cases } = JSON.parse(fs.readFileSync(0, "utf8"));
const made = [];
for (const { prompt, seed } of cases) {
  const texts = { on: [], off: [] };
  for await (const both of written(asset, Uint8Array.from(prompt), seed)) {
    for (const name of ["on", "off"]) texts[name].push(both[name].byte);
  }
  made.push(texts);
}
process.stdout.write(JSON.stringify(made));
