// The reader's text: which kernel and file are open, what is changed, and the link that holds it.
import { choice, details, element, set_options } from "../elements.mjs";
import { Editor } from "./editor.mjs";
import {
  changed,
  count_of,
  diff_lines,
  from_fragment,
  functions_of,
  hunks,
  to_fragment,
} from "./lines.mjs";

/** @typedef {import("./edit_kernel.mjs").Entry} Entry */

const SAVE_MS = 400, // after the last key
  TAB = "Tab indents. To leave the editor, press Escape, then Tab.";
const SIGNS = /** @type {Record<string, string>} */ ({ "-": "del", "+": "ins" });

/** @param {string} text @param {() => void} act @param {string} kind */
export function button(text, act, kind = "lab-button") {
  const made = element("button", { type: "button", class: kind }, text);
  made.addEventListener("click", act);
  return made;
}

/** @param {string} label @param {...Node} inside */
export const group = (label, ...inside) =>
  element("div", { class: "lab-form", role: "group", "aria-label": label }, ...inside);

export class Desk {
  timer = 0;
  is_opening = false;

  /**
   * @param {Entry[]} kernels @param {(text: string) => void} say
   * @param {() => void} on_load  another kernel is open, or the original again
   */
  constructor(kernels, say, on_load) {
    this.kernels = kernels;
    this.say = say;
    this.on_load = on_load;
    const names = kernels.map(({ budget }) => ({ value: budget.kernel, text: budget.kernel }));
    this.kernel = choice("Kernel", names);
    this.file = choice("File", []);
    this.place = choice("Go to", []);
    this.plant = choice("Plant a mistake", []);
    this.idea = element("p", { class: "lab-note" });
    this.diff = element("code", {});
    const box = element("div", { class: "lab-desk" });
    this.editor = new Editor(box, () => this.#changed());
    this.above = [
      group("what to edit", this.kernel.field, this.file.field, this.place.field, this.plant.field),
      this.idea,
      box,
      element("p", { class: "lab-note" }, TAB),
    ];
    const shown = { class: "lab-diff", tabIndex: 0, "aria-label": "the diff" };
    this.difference = details("", false, element("pre", shown, this.diff));
    const quiet = "lab-button lab-quiet";
    this.below = [
      this.difference,
      group(
        "the edit",
        button("Reset", () => this.#reset(), quiet),
        button("Copy link", () => this.#copy(), quiet),
      ),
    ];
    this.#listen();
  }

  #listen() {
    this.kernel.select.addEventListener("change", () => this.#load(this.entry.files));
    this.file.select.addEventListener("change", () => {
      this.editor.show(this.file.select.value);
      this.#list_places();
    });
    this.place.select.addEventListener("change", () =>
      this.editor.go(this.editor.path, Number(this.place.select.value)),
    );
    this.plant.select.addEventListener("change", () => this.#plant());
    addEventListener("hashchange", () => this.open(location.hash));
  }

  get entry() {
    const name = this.kernel.select.value;
    return /** @type {Entry} */ (this.kernels.find(({ budget }) => budget.kernel === name));
  }

  get texts() {
    return this.editor.texts;
  }

  /** Shows a line of a file. @param {string} path @param {number} line @param {number} column */
  go(path, line, column = 1) {
    this.file.select.value = path;
    this.editor.go(path, line, column);
    this.#list_places();
  }

  /** Shows the edit of a link, or the first kernel. @param {string} fragment */
  async open(fragment) {
    const files_of = (/** @type {string} */ name) =>
      this.kernels.find(({ budget }) => budget.kernel === name)?.files;
    let linked = null,
      wrong = "";
    try {
      linked = await from_fragment(fragment, files_of);
    } catch (error) {
      wrong = /** @type {Error} */ (error).message;
    }
    if (linked) this.kernel.select.value = linked.kernel;
    const edited = linked && Object.keys(changed(this.entry.files, linked.texts))[0];
    if (linked || !this.editor.path) this.#load(linked?.texts ?? this.entry.files, edited);
    if (wrong) this.say(wrong);
    else if (edited) this.say("The link's edit is in the editor; the diff shows it.");
  }

  /** @param {Record<string, string>} texts @param {string | null} [path] */
  #load(texts, path) {
    const { entry } = this,
      names = Object.keys(entry.files);
    this.is_opening = true;
    this.editor.load(texts, path ?? names[0]);
    this.is_opening = false;
    const files = names.map((value) => ({ value, text: value }));
    set_options(this.file.select, files, this.editor.path);
    const plants = ["Choose one", ...entry.plants.map(({ words }) => words)];
    set_options(
      this.plant.select,
      plants.map((text, i) => ({ value: String(i), text })),
    );
    this.plant.field.hidden = entry.plants.length === 0;
    this.idea.textContent = entry.idea;
    this.say("");
    this.#list_places();
    this.#draw_diff();
    this.on_load();
  }

  #list_places() {
    const found = functions_of(this.texts[this.editor.path]);
    set_options(this.place.select, [
      { value: "1", text: "a function" },
      ...found.map(({ name, line }) => ({ value: String(line), text: `${name}, line ${line}` })),
    ]);
  }

  #changed() {
    if (this.is_opening) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#keep(), SAVE_MS);
  }

  /** Keeps the edit in the page's address, so that it outlives a reload. */
  async #keep() {
    this.#list_places();
    this.#draw_diff();
    const { files, budget } = this.entry,
      is_changed = Object.keys(changed(files, this.texts)).length > 0;
    const end = is_changed ? await to_fragment(budget.kernel, files, this.texts) : "#";
    history.replaceState(null, "", end);
  }

  #draw_diff() {
    const { files } = this.entry,
      edits = Object.entries(changed(files, this.texts));
    const lines = edits.flatMap(([path, text]) => [
      path,
      ...diff_lines(files[path], hunks(files[path], text)),
    ]);
    this.diff.replaceChildren(
      ...lines.flatMap((line) => [element(SIGNS[line[0]] ?? "span", {}, line), "\n"]),
    );
    if (lines.length === 0) this.diff.textContent = "Nothing is changed.";
    const summary = this.difference.querySelector("summary");
    summary.textContent = `Diff against the original: ${this.label}`;
  }

  /** How much is changed, in words. */
  get label() {
    const { files } = this.entry,
      edits = Object.entries(changed(files, this.texts));
    const n = edits.reduce((sum, [path, text]) => sum + count_of(hunks(files[path], text)), 0);
    return n === 0 ? "unchanged" : `${n} ${n === 1 ? "line" : "lines"} changed`;
  }

  #plant() {
    const plant = this.entry.plants[Number(this.plant.select.value) - 1];
    if (!plant) return;
    const text = this.texts[plant.file],
      before = text.split(plant.old);
    this.plant.select.value = "0";
    if (before.length !== 2)
      return this.say(`The lines that this mistake changes are no longer in ${plant.file}.`);
    this.editor.replace(plant.file, before.join(plant.new));
    this.go(plant.file, before[0].split("\n").length);
    this.say(`Planted in ${plant.file}. ${plant.words} Press Check.`);
  }

  #reset() {
    this.#load(this.entry.files);
    history.replaceState(null, "", "#");
    this.say("The text is the original.");
  }

  async #copy() {
    await this.#keep();
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("The link is copied. It holds the edit; no server does.");
    } catch {
      this.say("The page's address holds the edit: copy it from the address bar.");
    }
  }
}
