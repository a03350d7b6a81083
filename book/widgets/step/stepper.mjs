// What a stepper shows of a recorded run: the source, shared memory, fragments and the softmax.
import { choice, element, number, set_options, table } from "../elements.mjs";
import { decode } from "../machine/formats.mjs";
import { fragments } from "./fragments.mjs";
import { barriers_table, details, softmax_table } from "./tables.mjs";
import { counts, draw_map, legend, row_of } from "./smem_map.mjs";
import {
  IN_FLIGHT,
  ROW,
  WRITTEN,
  changed,
  replay,
  state_of,
  thread_of,
} from "../machine/trace.mjs";

/** @typedef {import("../machine/trace.mjs").Event} Event */

const AROUND = 2, // lines of source before and after the one that is shown
  FEWEST_PIXELS = 50, // of a swipe
  PRODUCERS = 3, // warps of prefill_wgmma that ask for copies; no other warp writes tiles
  NAMED = 4; // buffers in a sentence
const BARRIERS = ["sync_block", "sync_warp", "mbarrier_wait", "named_sync", "end"];
const MEANING = /** @type {Record<string, string>} */ ({
  sync_block: "all threads of the block have met",
  sync_warp: "the lanes of the warp have met",
  shfl: "lanes have exchanged a number",
  warp_any: "the warp has asked whether any lane says yes",
  warp_uniform: "all lanes of the warp have the same number",
  ldmatrix_x4: "four 8 x 8 matrices went from shared memory into registers",
  ldmatrix_x4_trans: "four 8 x 8 matrices went from shared memory into registers, transposed",
  movmatrix_trans: "the lanes' registers have changed places: an 8 x 8 matrix is transposed",
  "mma_m16n8k16<f16>": "the tensor core has multiplied 16 x 16 by 16 x 8",
  tma_load: "the TMA was asked for a box, which is in flight",
  mbarrier_wait: "the warp goes on, since a phase has ended: that of the mbarrier",
  named_sync: "the warp has come to a named barrier",
  named_arrive: "the warp has told a named barrier that it came, and goes on",
  setmaxnreg_inc: "the warp takes the registers that others gave up",
  setmaxnreg_dec: "the warp gives up registers",
  wgmma_fence: "what the warp wrote to its registers is known to wgmma",
  wgmma: "the tensor core has got the warp's part of a product",
  wgmma_commit: "the products since the last commit are a group",
  wgmma_wait: "the warp waits for groups of products",
  end: "the checks have stopped the kernel",
});

/** The part below the form: the controls, and what they show of a recorded run. */
export class Stepper {
  at = 0;
  said = "";
  /** @type {import("./smem_map.mjs").Spot | null} */
  spot = null;
  /** @type {import("./smem_map.mjs").Tile[]} */
  tiles = [];
  slider = element("input", { type: "range", min: 0, value: 0, "aria-label": "stop" });
  words = element("div", { role: "status", class: "lab-status" });
  shown = element("div", {});
  lane = number("Lane", 0, 0, 31);
  buffer = choice("Buffer", []);
  buffer_row = number("Row", 0, 0, 15);
  piece = number("Piece of 16 bytes", 0, 0, 16);

  /**
   * @param {HTMLElement} root
   * @param {import("./step_kernel.mjs").Stepped} stepped @param {Event[]} events
   * @param {string | null} error
   */
  constructor(root, stepped, events, error) {
    this.stepped = stepped;
    this.events = events;
    this.error = error;
    this.plan = stepped.cases.recorded;
    this.warps = this.plan.threads / 32;
    this.stops = this.#stops("barriers", "all");
    this.row = choice(
      "Query row",
      stepped.rows.map(({ name }, i) => ({ value: String(i), text: name })),
    );
    this.#listen();
    root.replaceChildren(this.#bar(), this.words, this.shown);
    this.#mark_error(error);
    this.go(error === null ? 0 : this.stops.length - 1);
  }

  /** @param {string} what @param {string} warp  "all", or its number */
  #stops(what, warp) {
    return this.events.flatMap((event, i) => {
      const barrier = BARRIERS.includes(event.word);
      const mine = event.warp < 0 || warp === "all" || String(event.warp) === warp;
      return (what === "words" || barrier) && mine ? [i] : [];
    });
  }

  #bar() {
    const what = choice("Stop at", [
      { value: "barriers", text: "every barrier" },
      { value: "words", text: "every word in which threads meet" },
    ]);
    const warp = choice("Warp", [
      { value: "all", text: "all" },
      ...Array.from({ length: this.warps }, (_, w) => ({ value: String(w), text: String(w) })),
    ]);
    const button = (/** @type {string} */ text, /** @type {() => number} */ to) => {
      const made = element("button", { type: "button", class: "lab-button" }, text);
      made.addEventListener("click", () => this.go(to()));
      return made;
    };
    const again = () => {
      const here = this.stops[this.at];
      this.stops = this.#stops(what.select.value, warp.select.value);
      const next = this.stops.findIndex((i) => i >= here);
      this.go(next < 0 ? this.stops.length - 1 : next);
    };
    for (const { select } of [what, warp]) select.addEventListener("change", again);
    const bar = element(
      "div",
      { class: "lab-form lab-stepper", role: "group", "aria-label": "steps" },
      button("Back", () => this.at - 1),
      button("Forward", () => this.at + 1),
      this.slider,
      what.field,
      warp.field,
    );
    bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[
        event.key
      ];
      if (by === undefined || /** @type {Element} */ (event.target).tagName !== "BUTTON") return;
      event.preventDefault();
      this.go(this.at + by);
    });
    return bar;
  }

  #listen() {
    this.#swipes();
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    for (const field of [this.lane.input, this.row.select])
      field.addEventListener("input", () => this.draw());
    const look = () => {
      const tile = this.tiles.find((one) => one.name === this.buffer.select.value);
      if (!tile) return;
      const within = (/** @type {any} */ input, /** @type {number} */ n) =>
        Math.min(Math.max(0, Math.trunc(Number(input.value))), n - 1);
      this.spot = {
        tile,
        row: within(this.buffer_row.input, tile.rows),
        chunk: within(this.piece.input, tile.chunks),
      };
      this.draw();
    };
    for (const field of [this.buffer.select, this.buffer_row.input, this.piece.input])
      field.addEventListener("input", look);
  }

  /** Marks the line and the bytes that the checks name. @param {string | null} error */
  #mark_error(error) {
    const end = this.events[this.events.length - 1],
      place = error?.match(/ at (?:\w+\/)?(\w+\/\w+\.cuh):(\d+)/);
    if (end?.word !== "end" || !place) return;
    Object.assign(end, { file: place[1], line: Number(place[2]) });
    const byte = Number(error?.match(/shared byte (\d+)/)?.[1] ?? NaN),
      { syncs } = replay(this.events, this.events.length, this.plan.smem_bytes);
    for (const tile of this.#map(syncs)) {
      const piece = Math.floor((byte - tile.byte) / ROW);
      if (piece >= 0 && piece < tile.rows * tile.chunks)
        this.spot = { tile, row: Math.floor(piece / tile.chunks), chunk: piece % tile.chunks };
    }
  }

  /** The buffers after some barriers of the block. @param {number} syncs */
  #map(syncs) {
    return this.stepped.maps.findLast((map) => map.syncs <= syncs)?.tiles ?? [];
  }

  /** A swipe to the left on the picture goes forward, as a page is turned. */
  #swipes() {
    let began = 0;
    this.shown.addEventListener("touchstart", (/** @type {TouchEvent} */ event) => {
      began = event.touches[0].clientX;
    });
    this.shown.addEventListener("touchend", (/** @type {TouchEvent} */ event) => {
      const by = event.changedTouches[0].clientX - began,
        on_map = /** @type {Element} */ (event.target).closest(".lab-map");
      if (on_map && Math.abs(by) > FEWEST_PIXELS) this.go(this.at - Math.sign(by));
    });
  }

  /** @param {number} stop */
  go(stop) {
    this.at = Math.min(Math.max(stop, 0), this.stops.length - 1);
    this.slider.max = this.stops.length - 1;
    this.slider.value = this.at;
    const event = this.events[this.stops[this.at]],
      who = event.warp < 0 ? "the block" : `warp ${event.warp}`;
    const place = event.file ? ` at ${event.file}:${event.line}` : "";
    this.slider.setAttribute("aria-valuetext", `${this.at + 1}: ${event.word}, ${who}`);
    this.draw();
    this.words.replaceChildren(
      element(
        "p",
        {},
        element("b", {}, `Stop ${this.at + 1} of ${this.stops.length}, ${who}: `),
        `${event.word}${place}: ${MEANING[event.word] ?? "lanes have met"}`,
        event.awaited < 0 ? ". " : ` "${this.stepped.barriers[event.awaited]}". `,
        this.said,
      ),
    );
  }

  draw() {
    const index = this.stops[this.at],
      event = this.events[index],
      before = this.at === 0 ? 0 : this.stops[this.at - 1] + 1;
    const memory = replay(this.events, index + 1, this.plan.smem_bytes);
    const old = replay(this.events, before, this.plan.smem_bytes);
    this.tiles = this.#map(memory.syncs);
    if (this.spot && !this.tiles.includes(this.spot.tile)) this.spot = null;
    const fresh = changed(this.events, before, index + 1);
    this.said = this.#said(old, memory, fresh);
    const map = draw_map(this.tiles, memory.seen, fresh, this.spot, (spot) => {
      this.spot = spot;
      this.draw();
    });
    const product = event.lanes
      ? element(
          "div",
          {},
          this.lane.field,
          fragments(event.lanes, Number(this.lane.input.value) & 31, this.plan.attention.dtype),
        )
      : "";
    const parts = [
      this.#source(event),
      element(
        "div",
        { class: "lab-sides" },
        element("figure", { class: "lab-memory" }, map, this.#legend()),
        element("div", {}, softmax_table(memory, this.stepped.rows, this.row), product),
      ),
      this.#spot(memory),
      barriers_table(memory, this.stepped.barriers),
      this.#counts(memory),
    ];
    const focus = document.activeElement;
    this.shown.replaceChildren(...parts);
    if (focus instanceof HTMLElement && this.shown.contains(focus)) focus.focus();
  }

  /**
   * What has changed, in words.
   * @param {{seen: Uint32Array}} old @param {{seen: Uint32Array}} now
   * @param {Set<number>} fresh
   */
  #said(old, now, fresh) {
    const said = this.tiles.flatMap((tile) => {
      const first = tile.byte / ROW,
        rows = [...fresh].filter((row) => row >= first && row < first + tile.rows * tile.chunks);
      if (rows.length === 0) return [];
      const asked = rows.filter((row) => state_of(now.seen[row]) === IN_FLIGHT).length;
      const landed = rows.filter(
        (row) => state_of(old.seen[row]) === IN_FLIGHT && state_of(now.seen[row]) === WRITTEN,
      ).length;
      if (asked === rows.length) return [`copies into ${tile.name} are in flight`];
      if (landed === rows.length) return [`${tile.name} has come`];
      return [`${tile.name} has changed in ${rows.length} of ${tile.rows * tile.chunks} pieces`];
    });
    if (said.length === 0) return "Shared memory is as it was at the stop before.";
    const more = said.length > NAMED ? `; and ${said.length - NAMED} more buffers` : "";
    const text = said.slice(0, NAMED).join("; ") + more;
    return `${text[0].toUpperCase()}${text.slice(1)}.`;
  }

  #legend() {
    const by_copies = this.stepped.barriers.length > 0;
    return by_copies ? legend(PRODUCERS, "asked for") : legend(this.warps, "wrote");
  }

  /** @param {Event} event */
  #source({ file, line }) {
    const lines = this.stepped.sources[file];
    if (!lines) return "";
    const code = element("code", {});
    for (let i = Math.max(0, line - 1 - AROUND); i < Math.min(lines.length, line + AROUND); ++i) {
      const text = `${String(i + 1).padStart(4)}  ${lines[i]}\n`;
      code.append(i + 1 === line ? element("mark", {}, text) : text);
    }
    const label = `${file}, around line ${line}`;
    return element("pre", { class: "lab-source", tabIndex: 0, "aria-label": label }, code);
  }

  /** @param {import("../machine/trace.mjs").Memory} memory */
  #spot({ seen, bytes, barriers }) {
    const { buffer, buffer_row, piece } = this;
    set_options(
      buffer.select,
      this.tiles.map(({ name }) => ({ value: name, text: name })),
      this.spot?.tile.name ?? "Q",
    );
    const fields = element(
      "div",
      { class: "lab-form" },
      buffer.field,
      buffer_row.field,
      piece.field,
    );
    if (!this.spot) return details("Look at 16 bytes", false, fields);
    buffer_row.input.value = this.spot.row;
    piece.input.value = this.spot.chunk;
    const number = row_of(this.spot),
      code = seen[number],
      format = this.spot.tile.format,
      size = format === "fp32" ? 4 : 8;
    const lies = (/** @type {number} */ byte) => Math.floor(byte / ROW) === number;
    const held =
      format === "u64"
        ? this.stepped.barriers.filter((_, i) => barriers[i] && lies(barriers[i].byte))
        : Array.from(decode(format, bytes.slice(number * ROW, (number + 1) * ROW)), (x) =>
            x.toPrecision(4),
          );
    const column =
      (this.spot.tile.swizzled ? this.spot.chunk ^ (this.spot.row & 7) : this.spot.chunk) * size;
    const who = `thread ${thread_of(code)} of warp ${thread_of(code) >> 5}`;
    const state = ["nobody wrote them", `${who} wrote them`, `a copy of ${who} is in flight`];
    const swizzle = this.spot.tile.swizzled ? ", which the swizzle has put here" : "";
    return details(
      "Look at 16 bytes",
      true,
      fields,
      element(
        "p",
        {},
        `${this.spot.tile.name}, row ${this.spot.row}, bytes ${number * ROW} to ` +
          `${number * ROW + ROW - 1} of shared memory: columns ${column} to ` +
          `${column + size - 1}${swizzle}; ${state[state_of(code)] ?? "the TMA wrote them"}. ` +
          `They hold ${held.join(", ") || "nothing yet"}.`,
      ),
    );
  }

  /** @param {{seen: Uint32Array}} memory */
  #counts({ seen }) {
    const rows = counts(this.tiles, seen).map(({ tile, unwritten, in_flight, all, warps }) => [
      tile.name,
      String(all - unwritten - in_flight),
      String(in_flight),
      String(unwritten),
      warps.length === 0 ? "nobody" : `warp ${warps.join(", ")}`,
    ]);
    const heads = ["buffer", "written", "in flight", "unwritten", "by"];
    const caption = "Shared memory, in pieces of 16 bytes";
    return details(caption, false, table(caption, heads, rows));
  }
}
