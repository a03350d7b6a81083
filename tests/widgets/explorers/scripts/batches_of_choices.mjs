// node batches_of_choices.mjs < given.json: the rows that a page shows for each choice.
import fs from "node:fs";
import { rows_of } from "../../../../book/widgets/read/batches.mjs";

const { data, choices } = JSON.parse(fs.readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(choices.map((choice) => rows_of(data, choice))));
