// node unpacked_of_text.mjs < given.json: the bytes that a page reads from packed text, as base64.
import fs from "node:fs";
import { unpacked } from "../../../book/widgets/compile/pack.mjs";

const parts = JSON.parse(fs.readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(Buffer.from(await unpacked(parts)).toString("base64")));
