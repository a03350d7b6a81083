// What a stepper shows of a recorded run: the source, shared memory, fragments and the softmax.
import { choice, details, element, set_options, table } from "../elements.mjs";
import { Entry, numbers_of } from "../form/entry.mjs";
import { FIELDS, figures } from "../form/fields.mjs";
import { decode } from "../machine/formats.mjs";
import { fragments } from "./fragments.mjs";
import { BARRIERS, MEANING } from "./meanings.mjs";
import { barriers_table, softmax_table } from "./tables.mjs";
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
  PLAY_MS = 800, // at a stop
  PRODUCERS = 3, // warps of prefill_wgmma that ask for copies; no other warp writes tiles
  NAMED = 4; // buffers in a sentence
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
  brief = element("span", { class: "lab-brief", "aria-hidden": "true" }); // the words say it too
  memory = element("figure", { class: "lab-memory" });
  beside = element("div", {});
  shown = element("div", {});
  lane = new Entry(FIELDS.lane, 0);
  buffer = choice("Buffer", []);
  place = { row: new Entry(FIELDS.buffer_row, 0), chunk: new Entry(FIELDS.piece, 0) };
  play = element("button", { type: "button", class: "lab-button" }, "Play");
  /** @type {ReturnType<typeof setInterval> | undefined} */
  timer;

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
    root.replaceChildren(
      this.#which(),
      this.#bar(),
      element(
        "div",
        { class: "lab-sides" },
        this.memory,
        element("div", {}, this.words, this.beside),
      ),
      this.shown,
    );
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

  /** The choice of the stops. */
  #which() {
    const what = choice("Stop at", [
      { value: "barriers", text: "every barrier" },
      { value: "words", text: "every word in which threads meet" },
    ]);
    const warp = choice("Warp", [
      { value: "all", text: "all" },
      ...Array.from({ length: this.warps }, (_, w) => ({ value: String(w), text: String(w) })),
    ]);
    const again = () => {
      const here = this.stops[this.at];
      this.stops = this.#stops(what.select.value, warp.select.value);
      const next = this.stops.findIndex((i) => i >= here);
      this.go(next < 0 ? this.stops.length - 1 : next);
    };
    for (const { select } of [what, warp]) select.addEventListener("change", again);
    const label = { role: "group", "aria-label": "where to stop" };
    return element("div", { class: "lab-form", ...label }, what.field, warp.field);
  }

  /** The controls, which stay in sight while the picture is. */
  #bar() {
    const button = (/** @type {string} */ text, /** @type {number} */ by) => {
      const made = element("button", { type: "button", class: "lab-button" }, text);
      made.addEventListener("click", () => this.turn(by));
      return made;
    };
    const bar = element(
      "div",
      { class: "lab-form lab-stepper", role: "group", "aria-label": "steps" },
      button("Back", -1),
      button("Forward", 1),
      this.play,
      this.slider,
      this.brief,
    );
    bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[
        event.key
      ];
      if (by === undefined || /** @type {Element} */ (event.target).tagName !== "BUTTON") return;
      event.preventDefault();
      this.turn(by);
    });
    return bar;
  }

  /** Goes on by itself, or no longer. @param {boolean} on */
  #playing(on) {
    clearInterval(this.timer);
    this.play.textContent = on ? "Pause" : "Play";
    this.words.setAttribute("aria-live", on ? "off" : "polite");
    if (!on) return;
    if (this.at === this.stops.length - 1) this.go(0);
    this.timer = setInterval(() => {
      if (this.at < this.stops.length - 1 && this.play.isConnected) this.go(this.at + 1);
      else this.#playing(false);
    }, PLAY_MS);
  }

  /** A step that the reader asks for, as if the slider was moved. @param {number} by */
  turn(by) {
    this.slider.value = this.at + by;
    this.slider.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #listen() {
    this.#swipes();
    this.play.addEventListener("click", () => {
      if (this.play.textContent === "Play") this.#playing(true);
      else this.turn(0);
    });
    this.slider.addEventListener("input", () => {
      this.#playing(false);
      this.go(Number(this.slider.value));
    });
    for (const field of [this.lane.input, this.row.select])
      field.addEventListener("input", () => this.draw());
    const look = () => {
      const tile = this.tiles.find((one) => one.name === this.buffer.select.value);
      if (!tile) return;
      this.place.row.limit({ max: tile.rows - 1 });
      this.place.chunk.limit({ max: tile.chunks - 1 });
      const place = numbers_of(this.place);
      if (!place) return;
      this.spot = { tile, ...place };
      this.draw();
    };
    for (const field of [this.buffer.select, this.place.row.input, this.place.chunk.input])
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
    this.memory.addEventListener("touchstart", (/** @type {TouchEvent} */ event) => {
      began = event.touches[0].clientX;
    });
    this.memory.addEventListener("touchend", (/** @type {TouchEvent} */ event) => {
      const by = event.changedTouches[0].clientX - began,
        on_map = /** @type {Element} */ (event.target).closest(".lab-map");
      if (on_map && Math.abs(by) > FEWEST_PIXELS) this.turn(-Math.sign(by));
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
    this.brief.textContent = `${this.at + 1} of ${this.stops.length}: ${event.word}, ${who}`;
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
    const lane = this.lane.number();
    const product = event.lanes
      ? element(
          "div",
          {},
          this.lane.field,
          lane === null ? "" : fragments(event.lanes, lane, this.plan.attention.dtype),
        )
      : "";
    const focus = document.activeElement;
    this.memory.replaceChildren(map, this.#legend());
    this.beside.replaceChildren(
      this.#source(event),
      softmax_table(memory, this.stepped.rows, this.row),
      product,
    );
    this.shown.replaceChildren(
      this.#spot(memory),
      barriers_table(memory, this.stepped.barriers),
      this.#counts(memory),
    );
    const again = [this.beside, this.shown].some((part) => part.contains(focus));
    if (focus instanceof HTMLElement && again) focus.focus();
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
    const { buffer, place } = this;
    set_options(
      buffer.select,
      this.tiles.map(({ name }) => ({ value: name, text: name })),
      this.spot?.tile.name ?? "Q",
    );
    const fields = element(
      "div",
      { class: "lab-form" },
      buffer.field,
      place.row.field,
      place.chunk.field,
    );
    if (!this.spot) return details("Look at 16 bytes", false, fields);
    place.row.set(this.spot.row);
    place.chunk.set(this.spot.chunk);
    const number = row_of(this.spot),
      code = seen[number],
      format = this.spot.tile.format,
      size = format === "fp32" ? 4 : 8;
    const lies = (/** @type {number} */ byte) => Math.floor(byte / ROW) === number;
    const held =
      format === "u64"
        ? this.stepped.barriers.filter((_, i) => barriers[i] && lies(barriers[i].byte))
        : Array.from(decode(format, bytes.slice(number * ROW, (number + 1) * ROW)), (x) =>
            figures(x),
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
