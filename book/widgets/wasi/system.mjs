// What a program for WASI (preview 1) asks of its host: files in memory, clocks and random bytes.
import { above, ERRNO, find, Refused } from "./folders.mjs";

/** @typedef {import("./folders.mjs").Folder} Folder */
/** @typedef {{node: Folder | import("./folders.mjs").File, at: number, append: boolean}} Open */

const CHARACTERS = 2,
  FOLDER = 3,
  FILE = 4; // filetype
const ALL_RIGHTS = 0x1fffffffn;
const CREATE = 1,
  ONLY_FOLDER = 2,
  EXCLUSIVE = 4,
  TRUNCATE = 8; // oflags
const APPEND = 1; // fdflags
const ROOT = 3; // the descriptor of "/"

/** @type {WeakMap<object, bigint>} */
const inodes = new WeakMap(); // which tell files apart
let made = 0n;

/** @param {object} node */
function inode_of(node) {
  if (!inodes.has(node)) inodes.set(node, ++made);
  return /** @type {bigint} */ (inodes.get(node));
}

/** The program has ended. */
export class Exit extends Error {
  /** @param {number} code */
  constructor(code) {
    super(`exit ${code}`);
    this.code = code;
  }
}

export class System {
  /**
   * @param {Folder} root
   * @param {{args?: string[], env?: string[], write: (fd: number, bytes: Uint8Array) => void}} how
   *   write: takes what comes on stdout (1) and stderr (2)
   */
  constructor(root, { args = [], env = [], write }) {
    this.root = root;
    this.args = args;
    this.env = env;
    this.write = write;
    /** @type {Map<number, Open>} */
    this.open = new Map([[ROOT, { node: root, at: 0, append: false }]]);
    this.next = ROOT + 1;
    /** @type {WebAssembly.Memory | null} */
    this.memory = null;
  }

  get view() {
    return new DataView(/** @type {WebAssembly.Memory} */ (this.memory).buffer);
  }

  /** @param {number} at @param {number} n */
  bytes(at, n) {
    return new Uint8Array(/** @type {WebAssembly.Memory} */ (this.memory).buffer, at >>> 0, n);
  }

  /** @param {number} at @param {number} n */
  text(at, n) {
    return new TextDecoder().decode(this.bytes(at, n));
  }

  /** @param {number} fd @returns {Open} */
  of(fd) {
    const open = this.open.get(fd);
    if (!open) throw new Refused(ERRNO.badf);
    return open;
  }

  /** The folder of a descriptor, from which a path begins. @param {number} fd @returns {Folder} */
  base(fd) {
    const { node } = this.of(fd);
    if (!(node instanceof Map)) throw new Refused(ERRNO.notdir);
    return node;
  }

  /** The imports of the module: each call that is refused answers its errno. */
  imports() {
    const answer = (/** @type {Function} */ call) => (/** @type {any[]} */ ...given) => {
      try {
        return call.apply(this, given) ?? 0;
      } catch (error) {
        if (error instanceof Refused) return error.errno;
        throw error;
      }
    };
    const known = Object.fromEntries(
      Object.entries(CALLS).map(([name, call]) => [name, answer(call)]),
    );
    return new Proxy(known, { get: (calls, name) => calls[String(name)] ?? (() => ERRNO.nosys) });
  }

  /** @param {number} at @param {Folder | import("./folders.mjs").File | null} node  null: stdio */
  put_stat(at, node) {
    this.bytes(at, 64).fill(0);
    const view = this.view;
    const type = node === null ? CHARACTERS : node instanceof Map ? FOLDER : FILE;
    view.setBigUint64(at + 8, node === null ? 0n : inode_of(node), true);
    view.setUint8(at + 16, type);
    view.setBigUint64(at + 24, 1n, true);
    if (type === FILE)
      view.setBigUint64(at + 32, BigInt(/** @type {any} */ (node).bytes.length), true);
  }

  /** @param {number} list @param {number} at @param {string[]} texts */
  put_texts(list, at, texts) {
    for (const text of texts) {
      const bytes = new TextEncoder().encode(`${text}\0`);
      this.view.setUint32(list, at, true);
      this.bytes(at, bytes.length).set(bytes);
      list += 4;
      at += bytes.length;
    }
  }

  /** @param {number} count @param {number} size @param {string[]} texts */
  put_sizes(count, size, texts) {
    this.view.setUint32(count, texts.length, true);
    const n = texts.map((text) => new TextEncoder().encode(text).length + 1);
    this.view.setUint32(
      size,
      n.reduce((a, b) => a + b, 0),
      true,
    );
  }
}

/** The calls, with WASI's names. @type {Record<string, (this: System, ...given: any[]) => any>} */
const CALLS = {
  args_get(list, at) {
    this.put_texts(list, at, this.args);
  },
  args_sizes_get(count, size) {
    this.put_sizes(count, size, this.args);
  },
  environ_get(list, at) {
    this.put_texts(list, at, this.env);
  },
  environ_sizes_get(count, size) {
    this.put_sizes(count, size, this.env);
  },
  clock_res_get(_, out) {
    this.view.setBigUint64(out, 1000n, true);
  },
  clock_time_get(id, _, out) {
    const ms = id === 0 ? Date.now() : performance.now();
    this.view.setBigUint64(out, BigInt(Math.round(ms * 1e6)), true);
  },
  random_get(at, n) {
    for (let done = 0; done < n; done += 65536)
      crypto.getRandomValues(this.bytes(at + done, Math.min(65536, n - done)));
  },
  sched_yield() {},
  proc_exit(code) {
    throw new Exit(code);
  },
  fd_prestat_get(fd, out) {
    if (fd !== ROOT) throw new Refused(ERRNO.badf);
    this.view.setUint32(out, 0, true);
    this.view.setUint32(out + 4, 1, true);
  },
  fd_prestat_dir_name(_, at) {
    this.bytes(at, 1)[0] = 47; // "/"
  },
  fd_fdstat_get(fd, out) {
    const node = fd < ROOT ? null : this.of(fd).node;
    this.bytes(out, 24).fill(0);
    this.view.setUint8(out, node === null ? CHARACTERS : node instanceof Map ? FOLDER : FILE);
    this.view.setBigUint64(out + 8, ALL_RIGHTS, true);
    this.view.setBigUint64(out + 16, ALL_RIGHTS, true);
  },
  fd_fdstat_set_flags() {},
  fd_filestat_get(fd, out) {
    this.put_stat(out, fd < ROOT ? null : this.of(fd).node);
  },
  fd_filestat_set_size(fd, n) {
    const file = /** @type {any} */ (this.of(fd).node),
      bytes = new Uint8Array(Number(n));
    bytes.set(file.bytes.subarray(0, bytes.length));
    file.bytes = bytes;
  },
  fd_close(fd) {
    if (fd > ROOT) this.open.delete(fd);
  },
  fd_seek(fd, offset, whence, out) {
    if (fd < ROOT) throw new Refused(ERRNO.badf);
    const open = this.of(fd),
      size = open.node instanceof Map ? 0 : open.node.bytes.length;
    open.at = Number(offset) + [0, open.at, size][whence];
    this.view.setBigUint64(out, BigInt(open.at), true);
  },
  fd_tell(fd, out) {
    this.view.setBigUint64(out, BigInt(this.of(fd).at), true);
  },
  fd_read(fd, vectors, count, out) {
    if (fd < ROOT) return void this.view.setUint32(out, 0, true);
    const open = this.of(fd);
    open.at += read_at.call(this, open, open.at, vectors, count, out);
  },
  fd_pread(fd, vectors, count, offset, out) {
    read_at.call(this, this.of(fd), Number(offset), vectors, count, out);
  },
  fd_write(fd, vectors, count, out) {
    const open = fd < ROOT ? null : this.of(fd);
    if (open?.append) open.at = /** @type {any} */ (open.node).bytes.length;
    let n = 0;
    for (let i = 0; i < count; ++i) {
      const view = this.view;
      const [at, size] = [vectors + 8 * i, vectors + 8 * i + 4].map((p) => view.getUint32(p, true));
      const bytes = this.bytes(at, size).slice();
      if (open === null) this.write(fd, bytes);
      else write_at(/** @type {any} */ (open.node), open.at, bytes);
      if (open) open.at += size;
      n += size;
    }
    this.view.setUint32(out, n, true);
  },
  fd_readdir(fd, at, room, cookie, out) {
    const folder = this.of(fd).node;
    if (!(folder instanceof Map)) throw new Refused(ERRNO.notdir);
    const entry = new Uint8Array(room + 4096),
      view = new DataView(entry.buffer);
    let used = 0,
      next = Number(cookie);
    for (const [name, node] of [...folder].slice(next)) {
      const bytes = new TextEncoder().encode(name);
      if (used >= room) break;
      view.setBigUint64(used, BigInt(++next), true);
      view.setBigUint64(used + 8, 1n, true); // an inode of 0 makes the C library ask again
      view.setUint32(used + 16, bytes.length, true);
      view.setUint8(used + 20, node instanceof Map ? FOLDER : FILE);
      entry.set(bytes, used + 24);
      used += 24 + bytes.length;
    }
    used = Math.min(used, room);
    this.bytes(at, used).set(entry.subarray(0, used));
    this.view.setUint32(out, used, true);
  },
  path_filestat_get(fd, _, path, n, out) {
    this.put_stat(out, find(this.base(fd), this.text(path, n)));
  },
  path_open(fd, _, path, n, oflags, __, ___, fdflags, out) {
    const base = this.base(fd),
      name = this.text(path, n);
    /** @type {any} */
    let node;
    try {
      node = find(base, name);
    } catch (error) {
      if (!(oflags & CREATE) || /** @type {Refused} */ (error).errno !== ERRNO.noent) throw error;
    }
    if (node && oflags & EXCLUSIVE) throw new Refused(ERRNO.exist);
    if (node && oflags & ONLY_FOLDER && !(node instanceof Map)) throw new Refused(ERRNO.notdir);
    if (!node) {
      node = { bytes: new Uint8Array() };
      const to = above(base, name);
      to.folder.set(to.name, node);
    }
    if (oflags & TRUNCATE) node.bytes = new Uint8Array();
    this.open.set(this.next, { node, at: 0, append: Boolean(fdflags & APPEND) });
    this.view.setUint32(out, this.next++, true);
  },
  path_create_directory(fd, path, n) {
    const { folder, name } = above(this.base(fd), this.text(path, n));
    if (folder.has(name)) throw new Refused(ERRNO.exist);
    folder.set(name, new Map());
  },
  path_rename(fd, from, n, to_fd, to, m) {
    const source = above(this.base(fd), this.text(from, n)),
      target = above(this.base(to_fd), this.text(to, m));
    const node = source.folder.get(source.name);
    if (node === undefined) throw new Refused(ERRNO.noent);
    source.folder.delete(source.name);
    target.folder.set(target.name, node);
  },
  path_unlink_file(fd, path, n) {
    const { folder, name } = above(this.base(fd), this.text(path, n));
    if (!folder.delete(name)) throw new Refused(ERRNO.noent);
  },
  path_remove_directory(fd, path, n) {
    CALLS.path_unlink_file.call(this, fd, path, n);
  },
};

/**
 * Fills pieces of memory from a file; returns how many bytes there were.
 * @this {System} @param {Open} open @param {number} offset  in the file
 * @param {number} vectors  where the pieces are listed @param {number} count @param {number} out
 */
function read_at(open, offset, vectors, count, out) {
  if (open.node instanceof Map) throw new Refused(ERRNO.isdir);
  let n = 0;
  for (let i = 0; i < count; ++i) {
    const at = this.view.getUint32(vectors + 8 * i, true),
      size = this.view.getUint32(vectors + 8 * i + 4, true);
    const part = open.node.bytes.subarray(offset + n, offset + n + size);
    this.bytes(at, part.length).set(part);
    n += part.length;
    if (part.length < size) break;
  }
  this.view.setUint32(out, n, true);
  return n;
}

/** @param {import("./folders.mjs").File} file @param {number} at @param {Uint8Array} bytes */
function write_at(file, at, bytes) {
  const end = at + bytes.length;
  const room = /** @type {ArrayBuffer} */ (file.bytes.buffer);
  if (end > file.bytes.length) {
    // The buffer doubles, so that many small writes cost as much as one.
    const enough = file.bytes.byteOffset === 0 && room.byteLength >= end;
    const bigger = enough ? room : new ArrayBuffer(2 * end);
    const grown = new Uint8Array(bigger, 0, end);
    if (!enough) grown.set(file.bytes);
    file.bytes = grown;
  }
  file.bytes.set(bytes, at);
}
