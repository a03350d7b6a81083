// The audit of a file that the reader drops: rounding or a bug. The file stays on this machine.
import { element, short_answer } from "../elements.mjs";
import { MEGABYTES } from "../python/session.mjs";

const TYPES = ".npz,.safetensors";
const MOST = 512 << 20; // bytes, which Python's memory holds several times
const NOTE = `The verdict runs here, by Python with NumPy (${MEGABYTES} MB, loaded once): your file
  never leaves this machine.`;
const SAID = /** @type {Record<string, string>} */ ({ ROUNDING: "lab-good", BUG: "lab-error" });

/** @param {HTMLElement} root @param {import("../python/session.mjs").Session} session */
export function mount_audit(root, session) {
  const file = short_answer("A file, .npz or .safetensors", { type: "file", accept: TYPES });
  const words = short_answer("Options, as of the command line", {
    placeholder: "--map q=mine --p-format fp32",
    required: false,
    spellcheck: false,
  });
  const button = element("button", { type: "submit", class: "lab-button" }, "Audit");
  const stop = element("button", { type: "button", class: "lab-button lab-quiet" }, "Stop");
  stop.hidden = true;
  const form = element(
    "form",
    { class: "lab-form lab-drop", "aria-label": "audit of a file" },
    file.field,
    words.field,
    button,
    stop,
  );
  const status = element("p", { role: "status", class: "lab-status" });
  const said = element("pre", { class: "lab-source", tabIndex: 0, "aria-live": "polite" });
  said.hidden = true;
  const judge = async (/** @type {File} */ given) => {
    said.hidden = true;
    if (given.size > MOST) {
      status.textContent = `${given.name} has ${(given.size / 2 ** 20).toFixed(0)} MiB; a page
        takes ${MOST / 2 ** 20}. The command labkernels audit takes more.`;
      return;
    }
    button.disabled = true;
    stop.hidden = false;
    try {
      const dropped = new Uint8Array(await given.arrayBuffer());
      const asked = words.input.value.split(/\s+/).filter(Boolean);
      const question = { ask: "audit", file: given.name, words: asked };
      const told = (/** @type {string} */ text) => (status.textContent = text);
      const { answer, text } = await session.ask(question, told, { dropped });
      status.textContent = answer ? `${given.name}: ${answer}` : "The file was not judged.";
      status.className = `lab-status ${SAID[answer] ?? ""}`;
      said.textContent = text;
      said.hidden = false;
    } catch (error) {
      status.textContent = `The audit ended: ${error instanceof Error ? error.message : error}`;
    } finally {
      if (document.activeElement === stop) button.focus();
      stop.hidden = true;
      button.disabled = false;
    }
  };
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!button.disabled) judge(file.input.files[0]);
  });
  stop.addEventListener("click", () => session.stop());
  form.addEventListener("dragover", (/** @type {DragEvent} */ event) => event.preventDefault());
  form.addEventListener("drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    const files = event.dataTransfer?.files;
    if (!files?.length || button.disabled) return;
    file.input.files = files;
    judge(files[0]);
  });
  root.replaceChildren(element("p", { class: "lab-note" }, NOTE), form, status, said);
}
