// What a run did, word by word: the machine reports each word in which threads meet, and the
// recorder notes what has changed since the word before. A replay goes to any word.

/**
 * @typedef {{word: string, file: string, line: number, warp: number, rows: Uint16Array,
 *   seen: Uint32Array, bytes: Uint8Array, lanes: Uint32Array | null,
 *   softmax: Float32Array | null, barriers: Int32Array, awaited: number}} Event
 *   warp: -1 for the whole block. rows: the 16-byte rows of shared memory that changed; seen and
 *   bytes: what they are now. lanes: registers of a product, REGISTERS per lane. softmax: of the
 *   warp's lanes, where it changed, SOFTMAX numbers per lane. barriers: the block's mbarriers,
 *   BARRIER numbers each. awaited: the mbarrier that let the warp go on, or -1.
 * @typedef {{name: string, warps: number[], m: number, l: number[], o: number[][]}} Row
 *   which numbers that a warp told belong to a query row; parts of a sum stand side by side
 * @typedef {ReturnType<typeof replay>} Memory
 * @typedef {{byte: number, phase: number, pending: number, count: number, bytes: number}} Barrier
 */

export const ROW = 16;
export const LANES = 32;
export const REGISTERS = 10; // a0 to a3, b0, b1, d0 to d3 of an mma
const SOFTMAX = 12; // what a lane tells: two of m, two of l, eight of o
const BARRIER = 5; // byte, phase, pending, count, bytes
export const UNWRITTEN = 0;
export const WRITTEN = 1;
export const IN_FLIGHT = 2;
const LANE_BYTES = 24,
  SOFTMAX_BYTES = 4 * (SOFTMAX + 1);

/** The state of a row, from its code. @param {number} seen */
export const state_of = (seen) => seen >> 16;
/** The thread that wrote a row, from its code. @param {number} seen */
export const thread_of = (seen) => seen & 0xffff;

/** Notes the words of one block. */
export class Recorder {
  /**
   * @param {import("./machine.mjs").Machine} machine
   * @param {{smem_bytes: number, threads: number}} launch
   */
  constructor(machine, { smem_bytes, threads }) {
    this.machine = machine;
    this.seen = new Uint32Array(smem_bytes / ROW);
    this.bytes = new Uint8Array(smem_bytes).fill(0xff);
    this.updates = new Int32Array(threads);
  }

  /** @type {Event[]} */
  events = [];

  /**
   * @param {number} word @param {number} word_bytes @param {number} file
   * @param {number} file_bytes @param {number} line @param {number} thread
   */
  on_word = (word, word_bytes, file, file_bytes, line, thread) => {
    const name = this.#text(word, word_bytes),
      warp = name === "sync_block" ? -1 : thread >> 5;
    this.events.push({
      word: name,
      file: this.#text(file, file_bytes).split("/").slice(-2).join("/"),
      line,
      warp,
      ...this.#changes(),
      lanes: name.startsWith("mma_m16n8k16") ? this.#product(warp) : null,
      softmax: warp < 0 ? null : this.#softmax(warp),
      barriers: this.#barriers(),
      awaited: name === "mbarrier_wait" ? this.machine.exports.lab_awaited(thread) : -1,
    });
  };

  /** Notes that the checks have stopped the block. */
  end() {
    const nothing = { lanes: null, softmax: null, file: "", line: 0, warp: -1, awaited: -1 };
    const barriers = this.#barriers();
    this.events.push({ word: "end", ...nothing, barriers, ...this.#changes() });
  }

  #barriers() {
    const { exports } = this.machine;
    return new Int32Array(
      this.#memory,
      exports.lab_barriers(),
      BARRIER * exports.lab_barrier_count(),
    ).slice();
  }

  get #memory() {
    return this.machine.memory.buffer;
  }

  /** @param {number} at @param {number} n */
  #text(at, n) {
    return new TextDecoder().decode(new Uint8Array(this.#memory, at, n));
  }

  #changes() {
    const { exports } = this.machine,
      seen = new Uint32Array(this.#memory, exports.lab_seen(), this.seen.length),
      bytes = new Uint8Array(this.#memory, exports.lab_shared(), this.bytes.length);
    const now = new BigUint64Array(bytes.buffer, bytes.byteOffset, bytes.length / 8),
      before = new BigUint64Array(this.bytes.buffer);
    const rows = [];
    for (let i = 0; i < seen.length; ++i)
      if (
        seen[i] !== this.seen[i] ||
        now[2 * i] !== before[2 * i] ||
        now[2 * i + 1] !== before[2 * i + 1]
      )
        rows.push(i);
    this.seen.set(seen);
    this.bytes.set(bytes);
    const held = new Uint8Array(ROW * rows.length);
    rows.forEach((row, i) => held.set(bytes.subarray(ROW * row, ROW * (row + 1)), ROW * i));
    return {
      rows: Uint16Array.from(rows),
      seen: Uint32Array.from(rows, (row) => this.seen[row]),
      bytes: held,
    };
  }

  /** @param {number} warp */
  #product(warp) {
    const view = new DataView(this.#memory),
      words = new Uint32Array(LANES * REGISTERS);
    const lanes = this.machine.exports.lab_lanes(warp);
    for (let lane = 0; lane < LANES; ++lane) {
      const at = lanes + LANE_BYTES * lane,
        operands = view.getUint32(at, true),
        d = view.getUint32(at + 4, true),
        a = view.getUint32(operands, true);
      const places = [
        ...[0, 4, 8, 12].map((byte) => a + byte),
        operands + 4,
        operands + 8,
        ...[0, 4, 8, 12].map((byte) => d + byte),
      ];
      places.forEach((place, i) => (words[REGISTERS * lane + i] = view.getUint32(place, true)));
    }
    return words;
  }

  /** @param {number} warp */
  #softmax(warp) {
    const view = new DataView(this.#memory),
      begin = this.machine.exports.lab_softmaxes() + SOFTMAX_BYTES * LANES * warp;
    const last = begin + SOFTMAX_BYTES * (LANES - 1);
    const updates = view.getInt32(last + 4 * SOFTMAX, true);
    if (updates === this.updates[warp]) return null;
    this.updates[warp] = updates;
    return Float32Array.from({ length: LANES * SOFTMAX }, (_, i) =>
      view.getFloat32(begin + SOFTMAX_BYTES * Math.floor(i / SOFTMAX) + 4 * (i % SOFTMAX), true),
    );
  }
}

/**
 * The memory and the softmax after the first n events.
 * @param {Event[]} events @param {number} n @param {number} smem_bytes
 */
export function replay(events, n, smem_bytes) {
  const seen = new Uint32Array(smem_bytes / ROW),
    bytes = new Uint8Array(smem_bytes).fill(0xff);
  /** @type {Record<number, Float32Array>} */
  const softmax = {};
  let syncs = 0;
  /** @type {Int32Array} */
  let barriers = new Int32Array();
  for (const event of events.slice(0, n)) {
    event.rows.forEach((row, i) => {
      seen[row] = event.seen[i];
      bytes.set(event.bytes.subarray(ROW * i, ROW * (i + 1)), ROW * row);
    });
    if (event.softmax) softmax[event.warp] = event.softmax;
    if (event.word === "sync_block") ++syncs;
    barriers = event.barriers;
  }
  return { seen, bytes, softmax, syncs, barriers: barriers_of(barriers) };
}

/**
 * The rows that the events from `from` up to, but not including, `to` have changed.
 * @param {Event[]} events @param {number} from @param {number} to
 */
export function changed(events, from, to) {
  return new Set(events.slice(from, to).flatMap((event) => Array.from(event.rows)));
}

/** @param {Int32Array} numbers @returns {Barrier[]} */
function barriers_of(numbers) {
  return Array.from({ length: numbers.length / BARRIER }, (_, i) => {
    const [byte, phase, pending, count, bytes] = numbers.slice(BARRIER * i, BARRIER * (i + 1));
    return { byte, phase, pending, count, bytes };
  });
}

/** The float32 sum of neighbours, then of neighbouring sums. @param {number[]} parts */
function sum_of_pairs(parts) {
  while (parts.length > 1)
    parts = Array.from({ length: parts.length / 2 }, (_, i) =>
      Math.fround(parts[2 * i] + parts[2 * i + 1]),
    );
  return parts[0];
}

/**
 * {m, l} of a query row in a warp, and o of its first two channels.
 * @param {Float32Array} lanes @param {Row} row
 */
export function softmax_of(lanes, { m, l, o }) {
  const sum = (/** @type {number[]} */ at) => sum_of_pairs(at.map((i) => lanes[i]));
  return { m: lanes[m], l: sum(l), o: o.map(sum) };
}

/**
 * The warps' states merged in float64; o is divided by l.
 * @param {{m: number, l: number, o: number[]}[]} parts
 */
export function merged(parts) {
  const m = Math.max(...parts.map((part) => part.m)),
    weights = parts.map((part) => 2 ** (part.m - m));
  const l = parts.reduce((sum, part, i) => sum + weights[i] * part.l, 0);
  const o = parts[0].o.map(
    (_, c) => parts.reduce((sum, part, i) => sum + weights[i] * part.o[c], 0) / l,
  );
  return { m, l, o };
}

/**
 * Row and column of each half, or number, of a lane's register of an mma_m16n8k16.
 * @param {"a" | "b" | "d"} operand @param {number} register @param {number} lane
 */
export function elements_of(operand, register, lane) {
  const g = lane >> 2,
    t = 2 * (lane & 3);
  if (operand === "b") return [0, 1].map((half) => ({ row: t + 8 * register + half, column: g }));
  if (operand === "a")
    return [0, 1].map((half) => ({
      row: g + 8 * (register % 2),
      column: t + 8 * (register >> 1) + half,
    }));
  return [{ row: g + 8 * (register >> 1), column: t + (register % 2) }];
}
