// Runs launches in a WebAssembly module that holds one kernel and the lab's CPU machine.

/**
 * @typedef {{name: string, at: number, type: "i32"|"u32"|"i64"|"u64"|"f32"|"pointer"|"pointer64",
 *   value?: string, tensor?: string, byte?: number}} Field  one number of the kernel's parameter
 * @typedef {{name: string, bytes: Uint8Array, written: boolean}} Tensor
 * @typedef {{grid: number[], threads: number, smem_bytes: number, params_bytes: number,
 *   fields: Field[]}} Launch
 */

const RANGE_BYTES = 32; // of a GlobalRange and a Launch, as wasm32 lays them out
const LAUNCH_BYTES = 48;

/** A message of the machine: what the kernel did that a kernel must not do on a GPU. */
export class KernelError extends Error {}

/** One module with its memory. After a KernelError it must not run again. */
export class Machine {
  /**
   * @param {BufferSource} wasm
   * @param {Uint8Array} ex2  coefficients of the hardware's exponential, 64-bit words
   * @param {Record<string, string>} places  source places of the checks, by number
   */
  static async load(wasm, ex2, places = {}) {
    return Machine.start(await WebAssembly.compile(wasm), ex2, places);
  }

  /**
   * The same, of a compiled module.
   * @param {WebAssembly.Module} module @param {Uint8Array} ex2
   * @param {Record<string, string>} places
   */
  static start(module, ex2, places = {}) {
    const machine = new Machine();
    const named = (/** @type {number} */ at) => {
      const bytes = new Uint8Array(machine.memory.buffer, at >>> 0);
      return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
    };
    const imports = {
      lab: {
        // imported by modules that are compiled to be stepped through
        trace: (/** @type {number[]} */ ...told) => machine.on_word(...told),
        // of an index that leaves its own dimension
        index: (/** @type {number[]} */ ...[file, line, array, index, x, y, z, thread]) => {
          const place = named(file).split("/").slice(-3).join("/");
          throw new KernelError(
            `block (${x}, ${y}, ${z}), thread ${thread}: index ${index} is out of bounds of its ` +
              `dimension, ${named(array)}, at ${place}:${line}`,
          );
        },
        fail: (/** @type {number} */ at, /** @type {number} */ n) => {
          const text = new TextDecoder().decode(new Uint8Array(machine.memory.buffer, at >>> 0, n));
          throw new KernelError(
            text.replace(/<<(\d+)>>/g, (_, number) => places[number] ?? number),
          );
        },
      },
    };
    const instance = new WebAssembly.Instance(module, imports);
    machine.exports = /** @type {any} */ (instance.exports);
    machine.exports._initialize();
    machine.exports.lab_set_ex2(machine.put(ex2));
    return machine;
  }

  /** @type {any} */
  exports = null;
  /** Called after each word in which threads meet. @type {(...told: number[]) => void} */
  on_word = () => {};

  /** @returns {WebAssembly.Memory} */
  get memory() {
    return this.exports.memory;
  }

  /** The address of a copy of some bytes. @param {Uint8Array} bytes */
  put(bytes) {
    const at = this.exports.lab_malloc(Math.max(bytes.length, 1));
    new Uint8Array(this.memory.buffer).set(bytes, at);
    return at;
  }

  /**
   * Lays out a launch, whose blocks then run one by one.
   * @param {Launch} launch
   * @param {Tensor[]} tensors
   */
  prepare(launch, tensors) {
    const at = Object.fromEntries(tensors.map((t) => [t.name, this.put(t.bytes)]));
    const params = this.exports.lab_malloc(launch.params_bytes);
    if (this.exports.lab_params_bytes() !== launch.params_bytes)
      throw new Error(`the module's parameter has ${this.exports.lab_params_bytes()} bytes`);
    const ranges = this.exports.lab_malloc(RANGE_BYTES * tensors.length);
    const names = tensors.map((t) => this.put(new TextEncoder().encode(t.name + "\0")));
    const request = this.exports.lab_malloc(LAUNCH_BYTES);
    new Uint8Array(this.memory.buffer).fill(0, params, params + launch.params_bytes);
    const view = new DataView(this.memory.buffer); // no allocation comes after it
    for (const field of launch.fields) put_field(view, params + field.at, field, at);
    tensors.forEach((t, i) => {
      const p = ranges + RANGE_BYTES * i;
      view.setUint32(p, names[i], true);
      view.setBigUint64(p + 8, BigInt(at[t.name]), true);
      view.setBigUint64(p + 16, BigInt(t.bytes.length), true);
      view.setInt32(p + 24, Number(t.written), true);
    });
    [...launch.grid, launch.threads].forEach((n, i) => view.setInt32(request + 4 * i, n, true));
    view.setBigUint64(request + 16, BigInt(launch.smem_bytes), true);
    [params, ranges, tensors.length, 1].forEach((n, i) =>
      view.setUint32(request + 24 + 4 * i, n, true),
    );
    this.exports.lab_prepare(request);
    const [x, y, z] = launch.grid;
    return new Prepared(this, x * y * z, at, tensors, request);
  }
}

/** A launch whose tensors lie in a machine's memory. */
export class Prepared {
  /**
   * @param {Machine} machine
   * @param {number} blocks
   * @param {Record<string, number>} at
   * @param {Tensor[]} tensors
   * @param {number} request  the address of the launch's own facts
   */
  constructor(machine, blocks, at, tensors, request) {
    this.machine = machine;
    this.at = at;
    this.tensors = tensors;
    this.blocks = blocks;
    this.request = request;
  }

  /** Makes this launch the one that runs, after another of the same machine. */
  again() {
    this.machine.exports.lab_prepare(this.request);
  }

  /** Raises KernelError for what the block does wrong. @param {number} index */
  run_block(index) {
    this.machine.exports.lab_run_block(index);
  }

  run() {
    for (let i = 0; i < this.blocks; ++i) this.run_block(i);
  }

  /** A copy of what a tensor holds now. @param {string} name */
  read(name) {
    const found = this.tensors.find((t) => t.name === name);
    if (!found) throw new Error(`no tensor ${name}`);
    return new Uint8Array(this.machine.memory.buffer, this.at[name], found.bytes.length).slice();
  }
}

/**
 * @param {DataView} view
 * @param {number} place
 * @param {Field} field
 * @param {Record<string, number>} at
 */
function put_field(view, place, field, at) {
  const { type, value = "0" } = field;
  const address = field.tensor === undefined ? 0 : at[field.tensor] + (field.byte ?? 0);
  if (type === "pointer") view.setUint32(place, address, true);
  else if (type === "pointer64") view.setBigUint64(place, BigInt(address), true);
  else if (type === "i64") view.setBigInt64(place, BigInt(value), true);
  else if (type === "u64") view.setBigUint64(place, BigInt(value), true);
  else if (type === "i32") view.setInt32(place, Number(value), true);
  else if (type === "u32") view.setUint32(place, Number(value), true);
  else view.setFloat32(place, Number(value), true);
}
