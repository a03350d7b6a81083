// The files of a program for WASI, in memory: folders are maps, and a file is its bytes.

/** @typedef {{bytes: Uint8Array}} File */
/** @typedef {Map<string, Folder | File>} Folder */

export const ERRNO = { badf: 8, exist: 20, inval: 28, isdir: 31, noent: 44, nosys: 52, notdir: 54 };

/** What a call of WASI answers instead of a result. */
export class Refused extends Error {
  /** @param {number} errno */
  constructor(errno) {
    super(`errno ${errno}`);
    this.errno = errno;
  }
}

/** @param {string} path @returns {string[]} */
function parts_of(path) {
  /** @type {string[]} */
  const parts = [];
  for (const part of path.split("/"))
    if (part === "..") parts.pop();
    else if (part && part !== ".") parts.push(part);
  return parts;
}

/** @param {Folder} root @param {string} path @returns {Folder | File} */
export function find(root, path) {
  /** @type {Folder | File} */
  let at = root;
  for (const part of parts_of(path)) {
    if (!(at instanceof Map)) throw new Refused(ERRNO.notdir);
    const next = at.get(part);
    if (next === undefined) throw new Refused(ERRNO.noent);
    at = next;
  }
  return at;
}

/** The folder of a path, and the path's last name. @param {Folder} root @param {string} path */
export function above(root, path) {
  const parts = parts_of(path),
    name = parts.pop();
  const folder = find(root, parts.join("/"));
  if (name === undefined || !(folder instanceof Map)) throw new Refused(ERRNO.notdir);
  return { folder, name };
}

/**
 * Makes the folders of a path, and the file.
 * @param {Folder} root @param {string} path @param {Uint8Array} bytes
 */
export function put(root, path, bytes) {
  const parts = parts_of(path),
    name = /** @type {string} */ (parts.pop());
  let at = root;
  for (const part of parts) {
    const next = at.get(part) ?? new Map();
    if (!(next instanceof Map)) throw new Refused(ERRNO.notdir);
    at.set(part, next);
    at = next;
  }
  at.set(name, { bytes });
}
