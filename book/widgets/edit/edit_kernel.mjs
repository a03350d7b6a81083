// "Edit a kernel": the reader's own text is compiled in the page, then run, checked and stepped.
import { choice, element, set_options } from "../elements.mjs";
import { KINDS } from "../machine/launches.mjs";
import { run_apart } from "../run_kernel.mjs";
import { Stepper } from "../step/stepper.mjs";
import { details } from "../step/tables.mjs";
import { budgets } from "./budgets.mjs";
import { Builds } from "./builds.mjs";
import { said_of_check, steppable } from "./checks.mjs";
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
import { parted, side_by_side } from "./results.mjs";

/**
 * @typedef {import("../machine/jobs.mjs").Case} Case
 * @typedef {import("../machine/jobs.mjs").Result} Result
 * @typedef {import("../budget/budget.mjs").Ledger} Ledger
 * @typedef {{words: string, source: string, file: string, old: string, new: string}} Plant
 * @typedef {{offer: string, idea: string, files: Record<string, string>, launch: Case,
 *   told: [string, string, string] | null, rows: import("../machine/trace.mjs").Row[],
 *   maps: {syncs: number, tiles: import("../step/smem_map.mjs").Tile[]}[], barriers: string[],
 *   plants: Plant[], reported: any, budget: {kernel: string, threads: number, promised: number,
 *   smem: Ledger, thread: Ledger}}} Entry
 *   launch: a small one, for a run with checks; told: a file, its line, and the line that also
 *   tells the softmax; the rest is of the unchanged kernel
 * @typedef {{gpu: import("../budget/occupancy.mjs").Gpu, kernels: Entry[]}} Data
 * @typedef {import("../run_kernel.mjs").Shelf & {compiler: import("./builds.mjs").Load,
 *   download: string}} Shelf  download: what the compiler weighs, in words
 */

const RECORDED = "recorded",
  SAVE_MS = 400, // after the last key
  NEWEST = 2; // runs that stand side by side
const INPUTS = /** @type {Record<string, string>} */ ({
  normal: "random",
  peaky: "peaky: q times 6",
  integers: "integers from -4 to 4",
});

class Stopped extends Error {}

/** @param {HTMLElement} root @param {Shelf} shelf @param {Data} data */
export async function mount_edit_kernel(root, shelf, data) {
  const page = new EditKernel(root, shelf, data);
  await page.open(location.hash);
}

class EditKernel {
  /** @type {import("./results.mjs").Shown[]} */
  runs = [];
  /** @type {Record<string, Result>} of the unchanged kernel, by kernel and inputs */
  unchanged = {};
  /** @type {{built: any, events: import("../machine/trace.mjs").Event[], error: string | null}
   *   | null} */
  traced = null;
  /** @type {(reason: Error) => void} */
  halt = () => {};
  timer = 0;
  is_opening = false;
  is_idle = true;

  /** @param {HTMLElement} root @param {Shelf} shelf @param {Data} data */
  constructor(root, shelf, data) {
    this.shelf = shelf;
    this.data = data;
    this.builds = new Builds(shelf.compiler);
    const option = (/** @type {string} */ value, text = value) => ({ value, text });
    this.kernel = choice(
      "Kernel",
      data.kernels.map(({ budget }) => option(budget.kernel)),
    );
    this.file = choice("File", []);
    this.place = choice("Go to", []);
    this.plant = choice("Plant a mistake", []);
    this.keys = choice("Keys", []);
    this.inputs = choice(
      "Inputs",
      KINDS.map((kind) => option(kind, INPUTS[kind])),
    );
    this.idea = element("p", { class: "lab-note" });
    this.status = element("p", { role: "status", class: "lab-status" });
    this.bar = element("progress", { hidden: true, "aria-label": "progress" });
    this.marks = element("div", { role: "alert", class: "lab-marks" });
    this.diff = element("code", {});
    this.shown = element("div", { class: "lab-results" });
    this.checked = element("div", { class: "lab-results" });
    this.stepped = element("div", { class: "lab-results" });
    this.budget = element("div", { class: "lab-results" });
    this.box = element("div", { class: "lab-editor" });
    this.editor = new Editor(this.box, () => this.#changed());
    this.#place(root);
    this.#listen();
  }

  /** @param {HTMLElement} root */
  #place(root) {
    const button = (
      /** @type {string} */ text,
      /** @type {() => void} */ act,
      kind = "lab-button",
    ) => {
      const made = element("button", { type: "button", class: kind }, text);
      made.addEventListener("click", act);
      return made;
    };
    const group = (/** @type {string} */ label, /** @type {Node[]} */ ...inside) =>
      element("div", { class: "lab-form", role: "group", "aria-label": label }, ...inside);
    const quiet = "lab-button lab-quiet";
    this.acts = [
      button("Compile", () => this.#act(() => this.#compile(false))),
      button("Run", () => this.#act(() => this.#run())),
      button("Check", () => this.#act(() => this.#check())),
      button("Step", () => this.#act(() => this.#step())),
    ];
    this.stop = button("Stop", () => this.#stop(), quiet);
    this.#enable(true);
    this.link = button("Copy link", () => this.#copy(), quiet);
    this.download = element("p", { class: "lab-note" }, this.shelf.download);
    this.difference = details(
      "Diff against the original",
      false,
      element("pre", { class: "lab-diff", tabIndex: 0, "aria-label": "the diff" }, this.diff),
    );
    root.classList.add("lab-edit");
    root.replaceChildren(
      group("what to edit", this.kernel.field, this.file.field, this.place.field, this.plant.field),
      this.idea,
      this.box,
      element("p", { class: "lab-note" }, "Tab indents. To leave the editor, press Escape, then Tab."),
      group("what to do", ...this.acts, this.stop, this.keys.field, this.inputs.field),
      this.download,
      this.bar,
      this.status,
      this.marks,
      this.difference,
      group("the edit", button("Reset", () => this.#reset(), quiet), this.link),
      this.budget,
      this.checked,
      this.shown,
      this.stepped,
    );
  }

  #listen() {
    this.kernel.select.addEventListener("change", () => this.#load(this.entry.files));
    this.file.select.addEventListener("change", () => {
      this.editor.show(this.file.select.value);
      this.#list_places();
    });
    this.place.select.addEventListener("change", () => {
      this.editor.go(this.file.select.value, Number(this.place.select.value));
    });
    this.plant.select.addEventListener("change", () => this.#plant());
    addEventListener("hashchange", () => this.open(location.hash));
  }

  get entry() {
    const name = this.kernel.select.value;
    return /** @type {Entry} */ (this.data.kernels.find(({ budget }) => budget.kernel === name));
  }

  /** Shows the edit of a link, or the first kernel. @param {string} fragment */
  async open(fragment) {
    const files_of = (/** @type {string} */ name) =>
      this.data.kernels.find(({ budget }) => budget.kernel === name)?.files;
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
    if (wrong) this.#say(wrong);
    else if (edited) this.#say("The link's edit is in the editor; the diff shows it.");
  }

  /** @param {Record<string, string>} texts @param {string | null} [path] */
  #load(texts, path) {
    const { entry } = this,
      names = Object.keys(entry.files);
    this.is_opening = true;
    this.editor.load(texts, path ?? names[0]);
    this.is_opening = false;
    set_options(
      this.file.select,
      names.map((value) => ({ value, text: value })),
      this.editor.path,
    );
    set_options(
      this.plant.select,
      ["Choose one", ...entry.plants.map(({ words }) => words)].map((text, i) => ({
        value: String(i),
        text,
      })),
    );
    this.plant.field.hidden = entry.plants.length === 0;
    this.idea.textContent = entry.idea;
    this.runs = [];
    for (const part of [this.shown, this.checked, this.stepped, this.marks]) part.replaceChildren();
    this.#say("");
    this.#list_places();
    this.#draw_diff();
    this.#draw_budget(null);
    this.shelf.asset(entry.offer).then(({ cases }) => {
      const others = Object.keys(cases).filter((name) => name !== RECORDED);
      if (entry === this.entry) this.#list_keys([RECORDED, ...others]);
    });
  }

  /** @param {string[]} names */
  #list_keys(names) {
    const text = (/** @type {string} */ key) =>
      key === RECORDED ? "as recorded on an H200" : `one request of ${key}`;
    const kept = names.includes(this.keys.select.value) ? this.keys.select.value : names[0];
    set_options(
      this.keys.select,
      names.map((value) => ({ value, text: text(value) })),
      kept,
    );
  }

  #list_places() {
    const found = functions_of(this.editor.texts[this.editor.path]);
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
      { texts } = this.editor;
    const is_changed = Object.keys(changed(files, texts)).length > 0;
    const end = is_changed ? await to_fragment(budget.kernel, files, texts) : "#";
    history.replaceState(null, "", end);
  }

  #draw_diff() {
    const { files } = this.entry,
      edits = Object.entries(changed(files, this.editor.texts));
    const lines = edits.flatMap(([path, text]) => [
      `${path}`,
      ...diff_lines(files[path], hunks(files[path], text)),
    ]);
    const kinds = /** @type {Record<string, string>} */ ({ "-": "del", "+": "ins" });
    this.diff.replaceChildren(
      ...lines.flatMap((line) => [element(kinds[line[0]] ?? "span", {}, line), "\n"]),
    );
    if (lines.length === 0) this.diff.textContent = "Nothing is changed.";
    this.difference.querySelector("summary").textContent =
      `Diff against the original: ${this.label}`;
  }

  /** How much is changed, in words. */
  get label() {
    const { files } = this.entry,
      edits = Object.entries(changed(files, this.editor.texts));
    const n = edits.reduce((sum, [path, text]) => sum + count_of(hunks(files[path], text)), 0);
    return n === 0 ? "unchanged" : `${n} ${n === 1 ? "line" : "lines"} changed`;
  }

  #plant() {
    const plant = this.entry.plants[Number(this.plant.select.value) - 1];
    if (!plant) return;
    const text = this.editor.texts[plant.file];
    this.plant.select.value = "0";
    if (text.split(plant.old).length !== 2)
      return this.#say(`The lines that this mistake changes are no longer in ${plant.file}.`);
    this.editor.replace(
      plant.file,
      text.replace(plant.old, () => plant.new),
    );
    this.file.select.value = plant.file;
    this.editor.go(plant.file, text.slice(0, text.indexOf(plant.old)).split("\n").length);
    this.#list_places();
    this.#say(`Planted in ${plant.file}: ${plant.words} Press Check.`);
  }

  #reset() {
    this.#load(this.entry.files);
    history.replaceState(null, "", "#");
    this.#say("The text is the original.");
  }

  async #copy() {
    await this.#keep();
    try {
      await navigator.clipboard.writeText(location.href);
      this.#say("The link is copied. It holds the edit; no server does.");
    } catch {
      this.#say("The page's address holds the edit: copy it from the address bar.");
    }
  }

  /** @param {string} text */
  #say(text) {
    this.status.textContent = text;
  }

  /** @param {number | null} bytes  sizeof the struct, by the compiler */
  #draw_budget(bytes) {
    this.budget.replaceChildren(budgets(this.entry, this.data.gpu, bytes));
  }

  /** Does what a button says, until it is done or the reader presses Stop. @param {() => Promise<void>} act */
  async #act(act) {
    if (!this.is_idle) return;
    this.#enable(false);
    const stopped = new Promise((_, reject) => (this.halt = reject));
    try {
      await Promise.race([act(), stopped]);
    } catch (error) {
      const { diagnostics, message } = /** @type {any} */ (error);
      if (error instanceof Stopped) this.#say("Stopped.");
      else if (diagnostics) this.#show_marks(diagnostics);
      else this.#say(`It failed: ${message ?? error}`);
    } finally {
      this.bar.hidden = true;
      this.#enable(true);
    }
  }

  /** Buttons that do nothing now keep the focus. @param {boolean} is_idle */
  #enable(is_idle) {
    this.is_idle = is_idle;
    this.kernel.select.disabled = !is_idle;
    for (const button of this.acts) button.setAttribute("aria-disabled", String(!is_idle));
    this.stop.setAttribute("aria-disabled", String(is_idle));
  }

  #stop() {
    if (this.is_idle) return;
    this.builds.stop();
    this.worker?.terminate();
    this.halt(new Stopped());
  }

  /** @param {import("./editor.mjs").Mark[]} marks */
  #show_marks(marks) {
    const errors = marks.filter(({ severity }) => severity === "error").length;
    this.editor.mark(marks);
    if (errors) this.#say(`The compiler found ${errors} ${errors === 1 ? "error" : "errors"}.`);
    const items = marks.map((mark) => {
      const { path, line, column, severity, message } = mark;
      const text = `${path}:${line}: ${severity}: ${message}`;
      if (!(path in this.entry.files)) return element("li", {}, text);
      const go = element("button", { type: "button", class: "lab-go" }, text);
      go.addEventListener("click", () => {
        this.file.select.value = path;
        this.editor.go(path, line, column);
      });
      return element("li", {}, go);
    });
    this.marks.replaceChildren(items.length ? element("ul", {}, ...items) : "");
  }

  /** What the compiler makes of the text. @param {boolean} checked */
  async #build(checked) {
    const { texts } = this.editor,
      known = this.builds.known(this.entry, texts, checked);
    this.#show_marks([]);
    const built = await this.builds.build(this.entry, texts, checked, ({ bytes, of, what }) => {
      this.bar.hidden = false;
      if (of > 0) this.bar.value = bytes / of;
      else this.bar.removeAttribute("value");
      const mega = (/** @type {number} */ n) => (n / 1e6).toFixed(1);
      this.#say(of > 0 ? `${what}: ${mega(bytes)} of ${mega(of)} MB.` : "The compiler works.");
    });
    this.bar.hidden = true;
    this.download.hidden = true;
    this.#show_marks(built.diagnostics);
    this.#draw_budget(built.smem_bytes);
    const took = `${known ? "Compiled before, in" : "Compiled in"} ${(built.ms / 1000).toFixed(1)} s`;
    this.#say(`${took}: ${built.wasm.length.toLocaleString("en-US")} bytes of WebAssembly.`);
    return built;
  }

  /** @param {boolean} checked */
  async #compile(checked) {
    await this.#build(checked);
  }

  /** Runs a job; Stop ends its worker. @param {any} job @returns {Promise<Result>} */
  #job(job) {
    const worker = () => (this.worker = this.shelf.worker());
    return run_apart(job, { ...this.shelf, worker }, (done, blocks) => {
      this.bar.hidden = false;
      this.bar.value = done / blocks;
      this.#say(`${done} of ${blocks} blocks are done.`);
    });
  }

  async #run() {
    const { entry, label } = this,
      { texts } = this.editor,
      asset = await this.shelf.asset(entry.offer),
      keys = this.keys.select.value,
      kind = this.inputs.select.value,
      plan = asset.cases[keys],
      is_original = label === "unchanged" && !this.builds.known(entry, texts, false);
    const built = is_original ? null : await this.#build(false);
    const job = (/** @type {any} */ module, /** @type {number} */ smem_bytes) =>
      this.#job({ module, plan: { ...plan, smem_bytes }, seed: 0, kind, whole: true });
    const key = `${entry.offer} ${keys} ${kind}`;
    const before = (this.unchanged[key] ??= await job(asset.module, plan.smem_bytes));
    const result = built
      ? await job({ ...asset.module, wasm: built.wasm }, built.smem_bytes)
      : before;
    const recorded = keys === RECORDED && kind === "normal";
    const inputs = `${keys === RECORDED ? "the recorded keys" : `${keys} keys`}, ${INPUTS[kind]}`;
    const a = plan.attention;
    const shown = (/** @type {Result} */ of, /** @type {string} */ name, by = "the book's build") => {
      const equal = of.error === null && of.sum === (recorded ? plan.sha256 : before.sum);
      const apart = of.elements && before.elements && !equal;
      const where = apart ? parted(/** @type {any} */ (of).elements, before.elements, a) : null;
      return { label: name, inputs, built: by, result: of, a, recorded, equal, parted: where };
    };
    const now = shown(result, label, built ? "compiled in this page" : undefined);
    const last = this.runs[0];
    const old = last && last.inputs === inputs ? last : shown(before, "unchanged");
    this.runs = (built ? [now, old] : [now]).slice(0, NEWEST);
    this.shown.replaceChildren(side_by_side(this.runs));
    this.#say(result.error === null ? "The run is done." : "The machine stopped the kernel.");
  }

  async #check() {
    const { entry } = this,
      asset = await this.shelf.asset(entry.offer);
    const built = await this.#build(true);
    const plan = { ...entry.launch, smem_bytes: built.smem_bytes };
    const module = { ...asset.module, wasm: built.wasm, places: built.places ?? {} };
    const result = await this.#job({ module, plan, seed: 0, kind: "normal", traced: true });
    this.traced = { built, events: result.events, error: result.error };
    const said = said_of_check(result, entry, this.editor.texts);
    this.checked.replaceChildren(said.shown);
    this.#show_marks([...said.marks, ...built.diagnostics]);
    this.#say(said.words);
    this.stepped.replaceChildren();
  }

  async #step() {
    const { entry } = this,
      { texts } = this.editor;
    const built = this.builds.known(entry, texts, true);
    if (!built || this.traced?.built !== built) await this.#check();
    const traced = this.traced;
    if (!traced) return;
    const { stepped, missing } = steppable(entry, texts, traced.built, traced.events);
    const below = element("div", {});
    this.stepped.replaceChildren(...missing.map((text) => element("p", { class: "lab-note" }, text)), below);
    new Stepper(below, stepped, traced.events, traced.error);
    this.stepped.scrollIntoView({ block: "nearest" });
  }
}
