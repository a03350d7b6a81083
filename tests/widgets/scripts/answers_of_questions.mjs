// node answers_of_questions.mjs < given.json: what pages say to answers.
import fs from "node:fs";
import { judge } from "../../../book/widgets/ask/answer.mjs";

const cases = JSON.parse(fs.readFileSync(0, "utf8"));
const said = cases.map(({ table, answers }) => answers.map((given) => judge(table, given)));
process.stdout.write(JSON.stringify(said));
