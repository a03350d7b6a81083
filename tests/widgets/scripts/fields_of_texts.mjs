// node fields_of_texts.mjs < texts.json: what each field takes, and what it makes of texts.
import fs from "node:fs";
import { FIELDS, figures, numbers_in } from "../../../book/widgets/form/fields.mjs";

const { texts, numbers } = JSON.parse(fs.readFileSync(0, "utf8"));
const read = (field, text) => {
  try {
    return numbers_in(field, text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return error.message;
  }
};
const found = Object.entries(FIELDS).map(([name, field]) => {
  const edges = [field.min, field.max, field.min - 1, field.max + 1].map(String);
  return [name, field, edges.map((x) => read(field, x)), texts.map((text) => read(field, text))];
});
process.stdout.write(JSON.stringify({ found, figures: numbers.map((x) => figures(x)) }));
