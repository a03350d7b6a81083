// What the compiler says, in the reader's own files and lines.

/**
 * @typedef {{path: string, line: number, column: number,
 *   severity: "error" | "warning" | "note", message: string}} Diagnostic
 */

export const KERNELS = "kernels"; // the folder of the kernel's files, as the compiler sees them

/** The text does not compile; `diagnostics` say where and why. */
export class CompileError extends Error {
  /** @param {Diagnostic[]} diagnostics */
  constructor(diagnostics) {
    const first = diagnostics.find(({ severity }) => severity === "error");
    super(first?.message ?? "no reason is given");
    this.name = "CompileError";
    this.diagnostics = diagnostics;
  }
}

/** @param {string} said  by clang, or by the linker @returns {Diagnostic[]} */
export function diagnostics_of(said) {
  const found = [];
  for (const text of new Set(said.split("\n"))) {
    const placed = /^(.*?):(\d+):(\d+): (?:fatal )?(error|warning|note): (.*)$/.exec(text),
      other = /^(?:[\w-]+: )?(?:fatal )?(error|warning): (?:\S+\.o: )?(.*)$/.exec(text);
    if (placed) {
      const [, path, line, column, severity, message] = placed;
      found.push({
        path: path.replace(new RegExp(`^(?:\\./)?${KERNELS}/`), ""),
        line: Number(line),
        column: Number(column),
        severity: /** @type {any} */ (severity),
        message,
      });
    } else if (other)
      found.push({
        path: "",
        line: 0,
        column: 0,
        severity: /** @type {any} */ (other[1]),
        message: other[2],
      });
  }
  return found;
}
