// The system that a program of WASI finds: files in memory, its arguments, and nothing else.

/**
 * @typedef {Map<string, Uint8Array>} Files  content by path, without a leading "/"
 * @typedef {{path: string, at: number, folder: boolean}} Open
 */

const BAD_FILE = 8,
  EXISTS = 20,
  MISSING = 44,
  NOT_SUPPORTED = 58;
const FOLDER = 3,
  REGULAR = 4,
  TERMINAL = 2,
  ROOT = 3; // types of files, and the descriptor of the only folder that a program is given
const CREATE = 1,
  ONLY_FOLDER = 2,
  EXCLUSIVE = 4,
  TRUNCATE = 8;
const text = new TextEncoder();

class Exit extends Error {
  /** @param {number} code */
  constructor(code) {
    super(`exit ${code}`);
    this.code = code;
  }
}

/** A file that grows: appending to it costs time in proportion to what is appended. */
class Growing {
  size = 0;
  bytes = new Uint8Array(1 << 16);

  /** @param {Uint8Array} part @param {number} at */
  write(part, at) {
    const end = at + part.length;
    if (end > this.bytes.length) {
      const wider = new Uint8Array(Math.max(end, 2 * this.bytes.length));
      wider.set(this.bytes.subarray(0, this.size));
      this.bytes = wider;
    }
    this.bytes.set(part, at);
    this.size = Math.max(this.size, end);
  }

  get content() {
    return this.bytes.subarray(0, this.size);
  }
}

/** @param {string} path */
const plain = (path) => {
  /** @type {string[]} */
  const parts = [];
  for (const part of path.split("/"))
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  return parts.join("/");
};

/** One process: its files, its open files and what it has printed. */
class Process {
  /** @param {string[]} args @param {Files} files */
  constructor(args, files) {
    this.args = args.map((arg) => text.encode(`${arg}\0`));
    this.files = files;
    /** @type {Map<string, Growing>} */
    this.written = new Map();
    this.printed = [new Growing(), new Growing(), new Growing()];
    /** @type {Map<number, Open>} */
    this.open = new Map([[ROOT, { path: "", at: 0, folder: true }]]);
    this.next = ROOT + 1;
    /** @type {Set<string>} */
    this.folders = new Set([""]);
    for (const path of files.keys()) this.#enter(path);
    /** @type {WebAssembly.Memory} */
    this.memory = /** @type {any} */ (null);
  }

  /** @param {string} path */
  #enter(path) {
    for (let at = path.indexOf("/"); at >= 0; at = path.indexOf("/", at + 1))
      this.folders.add(path.slice(0, at));
  }

  get view() {
    return new DataView(this.memory.buffer);
  }

  /** @param {number} at @param {number} n */
  bytes(at, n) {
    return new Uint8Array(this.memory.buffer, at, n);
  }

  /** @param {number} fd @param {number} at @param {number} n */
  path(fd, at, n) {
    const name = new TextDecoder().decode(this.bytes(at, n));
    return plain(`${this.open.get(fd)?.path ?? ""}/${name}`);
  }

  /** @param {string} path */
  content(path) {
    return this.written.get(path)?.content ?? this.files.get(path);
  }

  /** @param {string} path @param {number} at */
  stat(path, at) {
    const content = this.content(path);
    if (content === undefined && !this.folders.has(path)) return MISSING;
    this.bytes(at, 64).fill(0);
    const view = this.view;
    let inode = 1n; // which tells files apart
    for (let i = 0; i < path.length; ++i)
      inode = BigInt.asUintN(64, inode * 1099511628211n + BigInt(path.charCodeAt(i)));
    view.setBigUint64(at + 8, inode, true);
    view.setUint8(at + 16, content === undefined ? FOLDER : REGULAR);
    view.setBigUint64(at + 24, 1n, true);
    view.setBigUint64(at + 32, BigInt(content?.length ?? 0), true);
    return 0;
  }

  /** Copies from a file to the pieces of memory that a list names. @param {number[]} where */
  read(/** @type {Uint8Array} */ content, /** @type {number} */ from, ...where) {
    const [list, n, told] = where;
    let at = from;
    for (let i = 0; i < n; ++i) {
      const to = this.view.getUint32(list + 8 * i, true),
        part = content.subarray(at, at + this.view.getUint32(list + 8 * i + 4, true));
      this.bytes(to, part.length).set(part);
      at += part.length;
    }
    this.view.setUint32(told, at - from, true);
    return at;
  }
}

/** @param {Process} p @returns {Record<string, (...given: any[]) => number>} */
function calls(p) {
  const strings = (/** @type {number} */ list, /** @type {number} */ to) => {
    p.args.forEach((arg, i) => {
      p.view.setUint32(list + 4 * i, to, true);
      p.bytes(to, arg.length).set(arg);
      to += arg.length;
    });
    return 0;
  };
  return {
    args_get: strings,
    args_sizes_get(n, bytes) {
      p.view.setUint32(n, p.args.length, true);
      p.view.setUint32(bytes, p.args.reduce((sum, arg) => sum + arg.length, 0), true);
      return 0;
    },
    environ_get: () => 0,
    environ_sizes_get(n, bytes) {
      p.view.setUint32(n, 0, true);
      p.view.setUint32(bytes, 0, true);
      return 0;
    },
    clock_time_get(_clock, _precision, to) {
      p.view.setBigUint64(to, BigInt(Math.round(1e6 * performance.now())), true);
      return 0;
    },
    random_get(at, n) {
      for (let i = 0; i < n; ++i) p.bytes(at, n)[i] = 256 * Math.random();
      return 0;
    },
    proc_exit(code) {
      throw new Exit(code);
    },
    ...calls_of_paths(p),
    ...calls_of_descriptors(p),
  };
}

/** @param {Process} p @returns {Record<string, (...given: any[]) => number>} */
function calls_of_paths(p) {
  return {
    path_open(fd, _look, at, n, how, _rights, _inherited, _flags, to) {
      const path = p.path(fd, at, n),
        folder = p.folders.has(path);
      if (p.content(path) === undefined && !folder) {
        if (!(how & CREATE)) return MISSING;
        p.written.set(path, new Growing());
      } else if (how & EXCLUSIVE) return EXISTS;
      else if (how & ONLY_FOLDER && !folder) return NOT_SUPPORTED;
      else if (how & TRUNCATE) p.written.set(path, new Growing());
      p.open.set(p.next, { path, at: 0, folder });
      p.view.setUint32(to, p.next++, true);
      return 0;
    },
    path_filestat_get: (fd, _look, at, n, to) => p.stat(p.path(fd, at, n), to),
    path_unlink_file(fd, at, n) {
      const path = p.path(fd, at, n);
      return p.written.delete(path) || p.files.delete(path) ? 0 : MISSING;
    },
    path_rename(fd, at, n, to_fd, to_at, to_n) {
      const from = p.path(fd, at, n),
        file = p.written.get(from);
      if (file === undefined) return MISSING;
      p.written.delete(from);
      p.written.set(p.path(to_fd, to_at, to_n), file);
      return 0;
    },
  };
}

/** @param {Process} p @returns {Record<string, (...given: any[]) => number>} */
function calls_of_descriptors(p) {
  /** @param {Open} file @param {number} by @param {number} whence */
  const seek = (file, by, whence) => {
    const length = p.content(file.path)?.length ?? 0;
    return (file.at = by + (whence === 0 ? 0 : whence === 1 ? file.at : length));
  };
  return {
    fd_close: (fd) => (p.open.delete(fd) ? 0 : fd < ROOT ? 0 : BAD_FILE),
    fd_fdstat_get(fd, to) {
      const file = p.open.get(fd);
      if (fd >= ROOT && file === undefined) return BAD_FILE;
      p.bytes(to, 24).fill(0);
      p.view.setUint8(to, fd < ROOT ? TERMINAL : file?.folder ? FOLDER : REGULAR);
      p.view.setBigUint64(to + 8, ~0n, true);
      p.view.setBigUint64(to + 16, ~0n, true);
      return 0;
    },
    fd_filestat_get(fd, to) {
      const file = p.open.get(fd);
      if (file !== undefined) return p.stat(file.path, to);
      p.bytes(to, 64).fill(0);
      p.view.setUint8(to + 16, TERMINAL);
      return fd < ROOT ? 0 : BAD_FILE;
    },
    fd_filestat_set_size(fd, size) {
      const file = p.written.get(p.open.get(fd)?.path ?? "");
      if (file === undefined) return BAD_FILE;
      file.write(new Uint8Array(Math.max(0, Number(size) - file.size)), file.size);
      file.size = Number(size);
      return 0;
    },
    fd_prestat_get(fd, to) {
      if (fd !== ROOT) return BAD_FILE;
      p.view.setUint32(to, 0, true);
      p.view.setUint32(to + 4, 1, true);
      return 0;
    },
    fd_prestat_dir_name(_fd, at) {
      p.bytes(at, 1)[0] = "/".charCodeAt(0);
      return 0;
    },
    fd_read(fd, list, n, told) {
      const file = p.open.get(fd);
      if (file === undefined) return BAD_FILE;
      file.at = p.read(p.content(file.path) ?? new Uint8Array(), file.at, list, n, told);
      return 0;
    },
    fd_pread(fd, list, n, at, told) {
      const file = p.open.get(fd);
      if (file === undefined) return BAD_FILE;
      p.read(p.content(file.path) ?? new Uint8Array(), Number(at), list, n, told);
      return 0;
    },
    fd_seek(fd, by, whence, to) {
      const file = p.open.get(fd);
      if (file === undefined) return NOT_SUPPORTED;
      p.view.setBigUint64(to, BigInt(seek(file, Number(by), whence)), true);
      return 0;
    },
    fd_write(fd, list, n, told) {
      const file = p.open.get(fd),
        to = file === undefined ? p.printed[fd] : p.written.get(file.path);
      if (to === undefined) return BAD_FILE;
      let bytes = 0;
      for (let i = 0; i < n; ++i) {
        const from = p.view.getUint32(list + 8 * i, true),
          part = p.bytes(from, p.view.getUint32(list + 8 * i + 4, true));
        to.write(part, file === undefined ? to.size : file.at);
        if (file !== undefined) file.at += part.length;
        bytes += part.length;
      }
      p.view.setUint32(told, bytes, true);
      return 0;
    },
  };
}

/**
 * Runs a program to its end. What it writes is in `written`; `files` stay as they are.
 * @param {WebAssembly.Module} program @param {string[]} args @param {Files} files
 */
export async function run_program(program, args, files) {
  const process = new Process(args, files),
    known = calls(process);
  const wasi = Object.fromEntries(
    WebAssembly.Module.imports(program).map(({ name }) => [
      name,
      known[name] ?? (() => NOT_SUPPORTED),
    ]),
  );
  const { exports } = await WebAssembly.instantiate(program, { wasi_snapshot_preview1: wasi });
  process.memory = /** @type {WebAssembly.Memory} */ (exports.memory);
  let code = 0;
  try {
    /** @type {() => void} */ (exports._start)();
  } catch (reason) {
    if (!(reason instanceof Exit)) throw reason;
    code = reason.code;
  }
  const said = process.printed.map((part) => new TextDecoder().decode(part.content));
  const written = new Map([...process.written].map(([path, file]) => [path, file.content]));
  return { code, out: said[1], error: said[2], written };
}
