// A kernel's LLVM IR, rewritten as labkernels/cuda/wasm/coroutine.py does, so that a CUDA thread
// can be left and resumed without a stack.

const DEFINITION = /^define [^\n]*?@("[^"]+"|[\w.$]+)\([^]*?^}/gm;
const ENTER = /^  (%[\w.]+) = [^\n]*call [^\n]*ptr @lab_enter\(\)[^\n]*$/gm;
const SUSPEND = /^  (%[\w.]+) = [^\n]*call [^\n]*i1 @lab_suspend\(\)[^\n]*$/gm;
const LEAVE = /^  (?:tail )?call [^\n]*void @lab_leave\(\)[^\n]*\n  unreachable[^\n]*$/gm;
const ACCESS = /^( .*call .*@__tsan_\w+\(.*!dbg !(\d+).*)$/gm;
const BEGIN = "lab_begin";
const COROUTINE = 90000,
  INLINED = 100000; // numbers of attribute groups that clang does not reach
const DECLARATIONS = `
declare ptr @lab_frame(i32)
declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i32 @llvm.coro.size.i32()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare void @llvm.coro.end(ptr, i1, token)
`;

/** @param {string} ir @returns {Map<string, string>} attributes by the number of their group */
const groups_of = (ir) =>
  new Map(Array.from(ir.matchAll(/^attributes #(\d+) = \{ (.*) \}$/gm), (m) => [m[1], m[2]]));

/** @param {string} head  the line of a definition */
const group_of = (head) => /** @type {RegExpExecArray} */ (/ #(\d+)/.exec(head))[1];

/** The functions that suspend, or call one that does. @param {string} ir */
export function waiting_in(ir) {
  const bodies = Array.from(ir.matchAll(DEFINITION), (m) => [m[1], m[0]]);
  const waiting = new Set(),
    todo = ["lab_suspend"];
  for (const name of todo) {
    const call = new RegExp(`call [^\\n]*@${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\(`);
    for (const [found, body] of bodies)
      if (!waiting.has(found) && call.test(body)) {
        waiting.add(found);
        if (found !== BEGIN) todo.push(found);
      }
  }
  waiting.delete(BEGIN);
  return waiting;
}

/** The IR in which some functions must be inlined. @param {string} ir */
export function inline_what_waits(ir, waiting = waiting_in(ir)) {
  const groups = groups_of(ir),
    made = new Map();
  const text = ir.replace(DEFINITION, (whole, name) => {
    if (!waiting.has(name)) return whole;
    const end = whole.indexOf("\n"),
      group = group_of(whole.slice(0, end));
    made.set(group, groups.get(group)?.replace(/\b(?:noinline|optsize|minsize) ?/g, ""));
    const head = whole
      .slice(0, end)
      .replace(` #${group}`, ` #${INLINED + Number(group)}`)
      .replace(
        /^define (?:(?:hidden|dso_local|linkonce_odr|weak_odr|internal) )*/,
        "define internal ",
      )
      .replace(/ comdat(?:\(\$[^)]*\))?/g, "");
    return head + whole.slice(end);
  });
  const added = Array.from(
    made,
    ([n, own]) => `attributes #${INLINED + Number(n)} = { alwaysinline ${own} }`,
  );
  return [text, ...added, ""].join("\n");
}

/**
 * The IR in which `lab_begin` is a coroutine. Raises: Error if a function besides it suspends.
 * @param {string} ir
 */
export function suspendable(ir) {
  const found = /** @type {RegExpMatchArray} */ (
    Array.from(ir.matchAll(DEFINITION)).find((m) => m[1] === BEGIN)
  );
  const group = group_of(found[0]),
    frame = /** @type {RegExpMatchArray} */ (found[0].match(new RegExp(ENTER, "m")))[1];
  const begin =
    "  %coro.id = call token @llvm.coro.id(i32 64, ptr null, ptr null, ptr null)\n" +
    "  %coro.bytes = call i32 @llvm.coro.size.i32()\n" +
    "  %coro.memory = call ptr @lab_frame(i32 %coro.bytes)\n" +
    `  ${frame} = call ptr @llvm.coro.begin(token %coro.id, ptr %coro.memory)`;
  const end = `  call void @llvm.coro.end(ptr ${frame}, i1 false, token none)\n  ret ptr ${frame}`;
  let count = 0;
  const body = found[0]
    .replace(` #${group}`, ` #${COROUTINE}`)
    .replace(ENTER, () => begin)
    .replace(SUSPEND, (_, value) => {
      const name = `%coro.suspend.${count++}`;
      const first = `  ${name} = call i8 @llvm.coro.suspend(token none, i1 false)`;
      return `${first}\n  ${value} = icmp ne i8 ${name}, 0`;
    })
    .replace(LEAVE, "  br label %coro.leave")
    .replace(/^  ret ptr [^\n]*$/gm, "  br label %coro.leave");
  const at = /** @type {number} */ (found.index),
    rest = ir.slice(at + found[0].length);
  const text = `${ir.slice(0, at)}${body.slice(0, -1)}\ncoro.leave:\n${end}\n}${rest}`;
  const left = /call [^\n]*@(?:lab_suspend|lab_leave|lab_enter)\(/.exec(text);
  if (left) throw new Error("a function in which threads wait calls itself");
  const own = groups_of(ir).get(group);
  return `${text}\nattributes #${COROUTINE} = { presplitcoroutine ${own} }${DECLARATIONS}`;
}

/**
 * The IR that notes the number of each access before its check, and the accesses' source lines.
 * @param {string} ir
 */
export function numbered_accesses(ir) {
  const metadata = new Map(
    Array.from(ir.matchAll(/^!(\d+) = (?:distinct )?(!DI\w+\(.*\))$/gm), (m) => [m[1], m[2]]),
  );
  /** @type {Record<string, string>} */
  const places = {};
  const text = ir.replace(ACCESS, (call, _, number) => {
    places[number] = source_line(number, metadata);
    return `  store i32 ${Number(number) + 1}, ptr @lab_here, align 4\n${call}`;
  });
  const here = "\n@lab_here = external global i32\n\ndeclare ";
  return { ir: text.replace("\ndeclare ", here), places };
}

/**
 * The innermost inlined line outside the machine's own words: "decode/mma/kernel.cuh:71".
 * @param {string} number @param {Map<string, string>} metadata
 */
function source_line(number, metadata) {
  for (let at = number; at; ) {
    const row = metadata.get(at) ?? "",
      name = file_of(field(row, "scope"), metadata);
    if (!name.includes("/lab/host/"))
      return `${name.split("/").slice(-3).join("/")}:${field(row, "line")}`;
    at = field(row, "inlinedAt");
  }
  return "an unknown line";
}

/** @param {string} scope @param {Map<string, string>} metadata */
function file_of(scope, metadata) {
  const row = () => metadata.get(scope) ?? "";
  while (scope && !row().includes("file:")) scope = field(row(), "scope");
  return scope ? field(metadata.get(field(row(), "file")) ?? "", "filename") : "";
}

/** A number or a string of a node; empty where it has none. @param {string} row */
function field(row, /** @type {string} */ name) {
  const found = new RegExp(`\\b${name}: (?:!?(\\d+)|"([^"]*)")`).exec(row);
  return found ? (found[1] ?? found[2]) : "";
}
