// "Write here": the small model writes with tensor cores on and off, and the first byte that
// differs is marked.
import { choice, element, label_of, table } from "../elements.mjs";
import { Entry, message_at } from "../form/entry.mjs";
import { FIELDS, figures } from "../form/fields.mjs";
import { run_form, runner } from "../form/runner.mjs";
import { written } from "./choice.mjs";

/** @typedef {import("./choice.mjs").Both} Both */

const DRAWN = "drawn",
  LONGEST = 128, // bytes of a prompt: half of the model's context
  TOP = 2;
const NAMES = { on: "Tensor cores on", off: "Tensor cores off" };
const SIDES = /** @type {("on" | "off")[]} */ (["on", "off"]);
const printed = (/** @type {number} */ byte) => byte === 10 || (byte >= 32 && byte < 127);

/** A byte in a text. */
const letter = (/** @type {number} */ byte) => (printed(byte) ? String.fromCharCode(byte) : "·");

/** A byte in a sentence. */
const named = (/** @type {number} */ byte) =>
  byte === 10
    ? "new line"
    : byte === 32
      ? "space"
      : printed(byte)
        ? `"${letter(byte)}"`
        : `byte ${byte}`;

/** A side of the page: the prompt, what was written, and a mark at the first byte that differs. */
class Column {
  /** @param {string} title @param {string} prompt */
  constructor(title, prompt) {
    this.text = element("pre", { class: "lab-text-grows", tabIndex: 0, "aria-label": title });
    this.text.append(element("span", { class: "lab-given" }, prompt));
    const name = element("p", { class: "lab-title" }, title);
    this.root = element("section", { class: "lab-run", "aria-label": title }, name, this.text);
  }

  /** @param {number} byte @param {boolean} first  whether it is the first that differs */
  add(byte, first) {
    const shown = byte === 10 && first ? "⏎\n" : letter(byte);
    this.text.append(first ? element("mark", {}, shown) : shown);
  }
}

/** The probabilities of the bytes written, and of the likeliest ones. @param {Both} at */
function shares_table({ on, off }) {
  const likely = SIDES.flatMap((side) => {
    const { shares } = { on, off }[side];
    return [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, TOP);
  });
  const rows = [...new Set([on.byte, off.byte, ...likely])].map((byte) => [
    named(byte),
    ...[on, off].map(({ shares }) => `${figures(100 * shares[byte])} %`),
  ]);
  const caption = "Probabilities at the first byte that differs";
  return table(caption, ["byte", ...Object.values(NAMES)], rows);
}

/**
 * Why a draw gives two bytes: it lies between two sums. No words for the most likely byte.
 * @param {Both} at
 */
function why({ on, off, draw }) {
  if (draw === null) return "";
  const last = Math.min(on.byte, off.byte);
  const [of_on, of_off] = [on, off].map(({ shares }) => {
    const sum = shares.subarray(0, last + 1).reduce((a, b) => a + b, 0);
    return `${figures(100 * sum, 5)} %`;
  });
  return (
    `The draw is ${figures(100 * draw, 5)} %, and the probabilities of all bytes up to ` +
    `${named(last)} add up to ${of_on} with tensor cores on and to ${of_off} with them off.`
  );
}

/** @param {HTMLElement} root @param {import("../run_kernel.mjs").Shelf} shelf */
export function mount_write(root, shelf) {
  const { mb, prompt: first } = shelf.writing;
  const prompt = element("textarea", { rows: 2, spellcheck: false, value: first }),
    field = label_of("Prompt", prompt);
  field.classList.add("lab-wide");
  const refuse = message_at(field, prompt);
  const options = [
    { value: DRAWN, text: "drawn, as likely as the model says" },
    { value: "likely", text: "the most likely (temperature 0)" },
  ];
  const next = choice("Next byte", options, DRAWN),
    seed = new Entry(FIELDS.seed, 0);
  const offer = () => (seed.field.hidden = next.select.value !== DRAWN);
  next.select.addEventListener("change", offer);
  offer();
  const results = element("div", { class: "lab-results" });
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const running = runner("Write", async ({ say, signal }) => {
    const given = new TextEncoder().encode(prompt.value),
      fits = given.length >= 1 && given.length <= LONGEST;
    refuse(fits ? "" : `${given.length} bytes are given; a prompt has 1 to ${LONGEST}.`);
    if (!fits) return prompt.focus();
    const from = next.select.value === DRAWN ? seed.number() : null;
    if (from === null && next.select.value === DRAWN) return seed.input.focus();
    say(`${mb} MB are loaded.`);
    const asset = await shelf.asset("writing");
    signal.throwIfAborted();
    const columns = SIDES.map(
      (side) => new Column(`${NAMES[side]}: ${asset.ways[side].kernel}`, prompt.value),
    );
    const beside = element("div", { class: "lab-runs" }, ...columns.map((column) => column.root)),
      parted = element("div");
    const show = () => results.replaceChildren(beside, parted);
    if (still()) results.replaceChildren();
    else show();
    say("Both texts are written.");
    let n = 0,
      apart = "";
    try {
      for await (const both of written(asset, given, from)) {
        ++n;
        const here = apart === "" && both.on.byte !== both.off.byte;
        SIDES.forEach((side, i) => columns[i].add(both[side].byte, here));
        if (here) {
          apart = `The texts part at byte ${n}: ${named(both.on.byte)} with tensor cores on, `;
          apart += `${named(both.off.byte)} with them off.`;
          parted.append(shares_table(both), element("p", { class: "lab-note" }, why(both)));
          say(apart);
        }
        await new Promise((resume) => setTimeout(resume)); // the page draws, and Stop is heard
        signal.throwIfAborted();
      }
    } finally {
      if (n > 0) show();
    }
    say(`${n} bytes are written. ${apart || "The texts are the same."}`);
  });
  const note = element(
    "p",
    { class: "lab-note" },
    `Write loads the model and both kernels (${mb} MB) and runs them in this page. Both columns ` +
      "compute all but attention alike: in bf16, with sums in float64.",
  );
  const form = run_form("what is written", running, field, next.field, seed.field);
  root.replaceChildren(note, form, running.status, results);
}
