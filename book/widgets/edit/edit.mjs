// What a page with the editor loads besides the book's script: the editor and the compiler's host.
import { Compiler } from "../compile/compiler.mjs";
import { mount_edit_kernel } from "./edit_kernel.mjs";

/** @param {HTMLElement} root @param {any} shelf */
async function mount(root, shelf) {
  const compiler = (/** @type {any} */ on) => Compiler.load(shelf.here, on),
    mega = (lab_compiler_bytes / 1e6).toFixed(0),
    download = `The first compile downloads the compiler: ${mega} MB.`;
  await mount_edit_kernel(root, { ...shelf, compiler, download }, await shelf.asset("editing"));
}

(/** @type {any} */ (globalThis).lab_assets ??= {}).edit = { mount, Compiler };
