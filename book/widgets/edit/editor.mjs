// A text editor of CodeMirror: one document a file, each with its own history and its own marks.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { cpp } from "@codemirror/lang-cpp";
import { bracketMatching, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import {
  EditorView,
  drawSelection,
  highlightActiveLine,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";

/**
 * @typedef {{path: string, line: number, column: number, severity: string, message: string}} Mark
 *   line and column count from 1; a column of 0 is the whole line
 */

export class Editor {
  /** @type {Record<string, any>} the states of the files that are not shown */
  #states = {};
  #path = "";
  /** @type {Mark[]} */
  #marks = [];

  /** @param {HTMLElement} parent @param {() => void} on_change */
  constructor(parent, on_change) {
    this.view = new EditorView({ parent });
    // Sphinx takes the key "/" of all but fields of forms, for its search.
    parent.addEventListener("keydown", (event) => event.stopPropagation());
    const changed = EditorView.updateListener.of(
      (/** @type {any} */ update) => update.docChanged && on_change(),
    );
    this.extensions = [
      lineNumbers(),
      lintGutter(),
      history(),
      drawSelection(),
      highlightActiveLine(),
      bracketMatching(),
      cpp(),
      syntaxHighlighting(classHighlighter),
      indentUnit.of("  "),
      keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
      changed,
    ];
  }

  /**
   * Begins anew with these files, and shows the one of the path.
   * @param {Record<string, string>} texts @param {string} path
   */
  load(texts, path) {
    const made = Object.entries(texts).map(([name, doc]) => [name, this.#state(name, doc)]);
    this.#states = Object.fromEntries(made);
    this.#path = "";
    this.#marks = [];
    this.show(path);
  }

  /** @param {string} name @param {string} doc */
  #state(name, doc) {
    const attributes = { "aria-label": `The text of ${name}`, spellcheck: "false", tabindex: "0" };
    const own = EditorView.contentAttributes.of(attributes);
    return EditorState.create({ doc, extensions: [...this.extensions, own] });
  }

  /** @param {string} path */
  show(path) {
    if (path === this.#path) return;
    if (this.#path) this.#states[this.#path] = this.view.state;
    this.#path = path;
    this.view.setState(this.#states[path]);
    this.#draw_marks();
  }

  get path() {
    return this.#path;
  }

  /** The texts of all files. @returns {Record<string, string>} */
  get texts() {
    if (this.#path) this.#states[this.#path] = this.view.state;
    const all = Object.entries(this.#states);
    return Object.fromEntries(all.map(([name, state]) => [name, state.doc.toString()]));
  }

  /** Replaces a text, as one step of its history. @param {string} path @param {string} text */
  replace(path, text) {
    this.show(path);
    const now = this.view.state.doc.toString();
    let from = 0,
      back = 0;
    while (from < Math.min(now.length, text.length) && now[from] === text[from]) ++from;
    const rest = Math.min(now.length, text.length) - from;
    while (back < rest && now[now.length - 1 - back] === text[text.length - 1 - back]) ++back;
    const changes = {
      from,
      to: now.length - back,
      insert: text.slice(from, text.length - back),
    };
    this.view.dispatch({ changes });
  }

  /**
   * Puts the cursor on a line, in the middle of the window.
   * @param {string} path @param {number} line
   */
  go(path, line, column = 1) {
    this.show(path);
    const { doc } = this.view.state,
      at = doc.line(Math.min(Math.max(line, 1), doc.lines)),
      anchor = Math.min(at.from + Math.max(column - 1, 0), at.to);
    const effects = EditorView.scrollIntoView(anchor, { y: "center" });
    this.view.dispatch({ selection: { anchor }, effects });
    this.view.focus();
  }

  /** Marks lines, and takes away the old marks. @param {Mark[]} marks */
  mark(marks) {
    this.#marks = marks;
    this.#draw_marks();
  }

  #draw_marks() {
    const { doc } = this.view.state;
    const shown = this.#marks
      .filter(({ path }) => path === this.#path)
      .map(({ line, column, severity, message }) => {
        const at = doc.line(Math.min(Math.max(line, 1), doc.lines)),
          from = Math.min(at.from + Math.max(column - 1, 0), at.to);
        const word = doc.sliceString(from, at.to).match(/^\w+|^\S/)?.[0].length ?? 0;
        const whole = column < 1 || word === 0;
        const known = ["error", "warning"].includes(severity) ? severity : "info";
        return {
          from: whole ? at.from : from,
          to: whole ? at.to : from + word,
          severity: /** @type {"error" | "warning" | "info"} */ (known),
          message,
        };
      })
      .sort((a, b) => a.from - b.from);
    this.view.dispatch(setDiagnostics(this.view.state, shown));
  }
}
