// "Edit a kernel": the reader's own text is compiled in the page, then run, checked and stepped.
import { choice, element, keep_options, set_options } from "../elements.mjs";
import { run_apart } from "../form/runner.mjs";
import { KINDS } from "../machine/launches.mjs";
import { Stepper } from "../step/stepper.mjs";
import { budgets } from "./budgets.mjs";
import { Builds } from "./builds.mjs";
import { said_of_check, steppable } from "./checks.mjs";
import { Desk, button, group } from "./desk.mjs";
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
 * @typedef {import("./builds.mjs").Built} Built
 */

const RECORDED = "recorded",
  BOOK = "the book's build",
  NEWEST = 2; // runs that stand side by side
const INPUTS = /** @type {Record<string, string>} */ ({
  normal: "random",
  peaky: "peaky: q times 6",
  integers: "integers from -4 to 4",
});

/** @param {HTMLElement} root @param {Shelf} shelf @param {Data} data */
export async function mount_edit_kernel(root, shelf, data) {
  await new EditKernel(root, shelf, data).desk.open(location.hash);
}

class EditKernel {
  /** @type {import("./results.mjs").Shown[]} */
  runs = [];
  /** @type {Record<string, Result>} of the unchanged kernel, by kernel and inputs */
  unchanged = {};
  /** @type {{built: Built, texts: Record<string, string>, result: Result} | null} */
  traced = null;
  running = new AbortController();
  is_idle = true;

  /** @param {HTMLElement} root @param {Shelf} shelf @param {Data} data */
  constructor(root, shelf, data) {
    this.shelf = shelf;
    this.data = data;
    this.builds = new Builds(shelf.compiler);
    this.keys = choice("Keys", []);
    this.inputs = choice(
      "Inputs",
      KINDS.map((kind) => ({ value: kind, text: INPUTS[kind] })),
    );
    this.status = element("p", { role: "status", class: "lab-status" });
    this.bar = element("progress", { hidden: true, "aria-label": "progress" });
    this.marks = element("div", { role: "alert", class: "lab-marks" });
    this.shown = element("div", { class: "lab-results" });
    this.checked = element("div", { class: "lab-results" });
    this.stepped = element("div", { class: "lab-results" });
    this.budget = element("div", { class: "lab-results" });
    this.download = element("p", { class: "lab-note" }, shelf.download);
    this.acts = [
      button("Compile", () => this.#act(() => this.#build(false))),
      button("Run", () => this.#act(() => this.#run())),
      button("Check", () => this.#act(() => this.#check())),
      button("Step", () => this.#act(() => this.#step())),
    ];
    this.stop = button("Stop", () => this.#stop(), "lab-button lab-quiet");
    this.desk = new Desk(
      data.kernels,
      (text) => this.#say(text),
      () => this.#begin(),
    );
    this.#enable(true);
    root.classList.add("lab-edit");
    root.replaceChildren(
      ...this.desk.above,
      group("what to do", ...this.acts, this.stop, this.keys.field, this.inputs.field),
      this.download,
      this.bar,
      this.status,
      this.marks,
      ...this.desk.below,
      this.budget,
      this.checked,
      this.shown,
      this.stepped,
    );
  }

  /** Another kernel is open, or the original again. */
  async #begin() {
    const { entry } = this.desk;
    this.runs = [];
    for (const part of [this.shown, this.checked, this.stepped, this.marks]) part.replaceChildren();
    this.#draw_budget(null);
    const { cases } = await this.shelf.asset(entry.offer);
    if (entry !== this.desk.entry) return;
    const names = [RECORDED, ...Object.keys(cases).filter((name) => name !== RECORDED)];
    const text = (/** @type {string} */ key) =>
      key !== RECORDED
        ? `one request of ${key}`
        : cases[key].sha256
          ? "as recorded on an H200"
          : "those of the primer";
    const kinds = cases[RECORDED].right ? ["integers"] : KINDS;
    keep_options(
      this.inputs.select,
      kinds.map((value) => ({ value, text: INPUTS[value] })),
    );
    const now = this.keys.select.value;
    set_options(
      this.keys.select,
      names.map((value) => ({ value, text: text(value) })),
      names.includes(now) ? now : names[0],
    );
  }

  /** @param {string} text */
  #say(text) {
    this.status.textContent = text;
  }

  /** @param {number | null} bytes  sizeof the struct, by the compiler */
  #draw_budget(bytes) {
    this.budget.replaceChildren(budgets(this.desk.entry, this.data.gpu, bytes));
  }

  /** Does what a button says, to its end or until Stop. @param {() => Promise<unknown>} act */
  async #act(act) {
    if (!this.is_idle) return;
    this.#enable(false);
    const { signal } = (this.running = new AbortController());
    const stopped = new Promise((_, reject) => signal.addEventListener("abort", reject));
    try {
      await Promise.race([act(), stopped]);
    } catch (error) {
      const { diagnostics, message } = /** @type {any} */ (error);
      if (signal.aborted) this.#say("Stopped.");
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
    this.desk.kernel.select.disabled = !is_idle;
    for (const each of this.acts) each.setAttribute("aria-disabled", String(!is_idle));
    this.stop.setAttribute("aria-disabled", String(is_idle));
  }

  #stop() {
    if (this.is_idle) return;
    this.running.abort();
    this.builds.stop();
  }

  /** @param {import("./editor.mjs").Mark[]} marks */
  #show_marks(marks) {
    const told = (/** @type {import("./editor.mjs").Mark} */ mark) => {
      const { path, line, severity, message } = mark;
      return `${path && `${path}:${line}: `}${severity}: ${message}`;
    };
    marks = marks.filter((mark, i) => marks.findIndex((one) => told(one) === told(mark)) === i);
    const errors = marks.filter(({ severity }) => severity === "error").length;
    this.desk.editor.mark(marks);
    if (errors) this.#say(`The compiler found ${errors} ${errors === 1 ? "error" : "errors"}.`);
    const items = marks.map((mark) => {
      const go = () => this.desk.go(mark.path, mark.line, mark.column);
      const known = mark.path in this.desk.entry.files;
      return element("li", {}, known ? button(told(mark), go, "lab-go") : told(mark));
    });
    this.marks.replaceChildren(items.length ? element("ul", {}, ...items) : "");
  }

  /** What the compiler makes of the text. @param {boolean} checked */
  async #build(checked) {
    const { entry, texts } = this.desk,
      known = this.builds.known(entry, texts, checked);
    this.#show_marks([]);
    const built = await this.builds.build(entry, texts, checked, ({ bytes, of, what }) => {
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
    const when = known ? "Compiled before" : "Compiled",
      size = built.wasm.length.toLocaleString("en-US");
    this.#say(`${when} in ${(built.ms / 1000).toFixed(1)} s: ${size} bytes of WebAssembly.`);
    return built;
  }

  /** Runs a job; Stop ends its worker. @param {any} job @returns {Promise<Result>} */
  #job(job) {
    const progress = (/** @type {number} */ done, /** @type {number} */ blocks) => {
      this.bar.hidden = false;
      this.bar.value = done / blocks;
      this.#say(`${done} of ${blocks} blocks are done.`);
    };
    return run_apart(job, this.shelf, progress, this.running.signal);
  }

  async #run() {
    const { entry, label, texts } = this.desk,
      asset = await this.shelf.asset(entry.offer),
      keys = this.keys.select.value,
      kind = this.inputs.select.value,
      plan = asset.cases[keys],
      needs_none = label === "unchanged" && !this.builds.known(entry, texts, false);
    const built = needs_none ? null : await this.#build(false);
    const job = (/** @type {any} */ module, /** @type {number} */ smem_bytes) =>
      this.#job({ module, plan: { ...plan, smem_bytes }, seed: 0, kind, whole: true });
    const key = `${entry.offer} ${keys} ${kind}`;
    const before = (this.unchanged[key] ??= await job(asset.module, plan.smem_bytes));
    const now = built
      ? await job({ ...asset.module, wasm: built.wasm }, built.smem_bytes)
      : before;
    const recorded = keys === RECORDED && kind === "normal" && plan.sha256 !== null;
    const inputs = `${keys === RECORDED ? "the first launch" : `${keys} keys`}, ${INPUTS[kind]}`;
    /** @param {Result} of @param {string} name @param {string} by  who compiled it */
    const shown = (of, name, by) => {
      const equal = of.error === null && of.sum === (recorded ? plan.sha256 : before.sum);
      const where =
        of.elements && before.elements && !equal
          ? parted(of.elements, before.elements, plan.attention)
          : null;
      const what = { label: name, inputs, built: by, result: of, a: plan.attention };
      return { ...what, recorded, equal, parted: where };
    };
    const last = this.runs[0];
    const old = last?.inputs === inputs ? last : shown(before, "unchanged", BOOK);
    const made = shown(now, label, built ? "compiled in this page" : BOOK);
    this.runs = (built ? [made, old] : [made]).slice(0, NEWEST);
    this.shown.replaceChildren(side_by_side(this.runs));
    this.#say(now.error === null ? "The run is done." : "The machine stopped the kernel.");
  }

  async #check() {
    const { entry, texts } = this.desk,
      { module } = await this.shelf.asset(entry.offer);
    const built = await this.#build(true);
    const result = await this.#job({
      module: { ...module, wasm: built.wasm, places: built.places ?? {} },
      plan: { ...entry.launch, smem_bytes: built.smem_bytes },
      seed: 0,
      kind: "normal",
      traced: true,
    });
    this.traced = { built, texts, result };
    const said = said_of_check(result, entry, texts);
    this.checked.replaceChildren(said.shown);
    this.stepped.replaceChildren();
    this.#show_marks([...said.marks, ...built.diagnostics]);
    this.#say(said.words);
  }

  async #step() {
    const { entry, texts } = this.desk,
      known = this.builds.known(entry, texts, true);
    if (!known || this.traced?.built !== known) await this.#check();
    if (!this.traced) return;
    const { built, result } = this.traced,
      { stepped, missing } = steppable(entry, this.traced.texts, built, result.events);
    const below = element("div", {});
    const notes = missing.map((text) => element("p", { class: "lab-note" }, text));
    this.stepped.replaceChildren(...notes, below);
    new Stepper(below, stepped, result.events, result.error);
    this.stepped.scrollIntoView({ block: "nearest" });
  }
}
