// node check.mjs FOLDER [OFF]: runs the recorded case of every asset (NAME.json) in a folder, with
// the part of number OFF broken.
import fs from "node:fs";
import path from "node:path";
import { run } from "./machine/jobs.mjs";

const folder = process.argv[2],
  off = process.argv[3] === undefined ? undefined : Number(process.argv[3]),
  found = {};
for (const file of fs.readdirSync(folder).filter((name) => name.endsWith(".json"))) {
  const { module, cases } = JSON.parse(fs.readFileSync(path.join(folder, file), "utf8"));
  const result = await run(
    { module, plan: cases.recorded, seed: 0, kind: "normal", off },
    async () => {},
  );
  found[path.basename(file, ".json")] = result;
}
process.stdout.write(JSON.stringify(found));
