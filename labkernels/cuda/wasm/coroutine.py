"""A kernel's LLVM IR, rewritten so that a CUDA thread can be left and resumed without a stack.

WebAssembly cannot switch stacks. The function `lab_begin`, which runs the kernel, becomes one of
LLVM's coroutines: everything that waits is inlined into it, and each call of `lab_suspend` becomes
a suspension.
"""

import re

_DEFINITION = re.compile(r'^define [^\n]*?@("[^"]+"|[\w.$]+)\(.*?^}', re.MULTILINE | re.DOTALL)
_GROUP = re.compile(r"^attributes #(\d+) = \{ (.*) \}$", re.MULTILINE)
_LINKAGE = re.compile(r"^define (?:(?:hidden|dso_local|linkonce_odr|weak_odr|internal) )*")
_COMDAT = re.compile(r" comdat(?:\(\$[^)]*\))?")
_NO_INLINE = re.compile(r"\b(?:noinline|optsize|minsize) ?")
_SUSPEND = re.compile(r"^  (%[\w.]+) = [^\n]*call [^\n]*i1 @lab_suspend\(\)[^\n]*$", re.MULTILINE)
_ENTER = re.compile(r"^  (%[\w.]+) = [^\n]*call [^\n]*ptr @lab_enter\(\)[^\n]*$", re.MULTILINE)
_LEAVE = re.compile(
    r"^  (?:tail )?call [^\n]*void @lab_leave\(\)[^\n]*\n  unreachable[^\n]*$", re.MULTILINE
)
_ACCESS = re.compile(r"^( .*call .*@__tsan_\w+\(.*!dbg !(\d+).*)$", re.MULTILINE)
_METADATA = re.compile(r"^!(\d+) = (?:distinct )?(!DI\w+\(.*\))$", re.MULTILINE)

_COROUTINE, _INLINED = 90000, 100000  # numbers of attribute groups that clang does not reach
_DECLARATIONS = """
declare ptr @lab_frame(i32)
declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i32 @llvm.coro.size.i32()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare void @llvm.coro.end(ptr, i1, token)
"""


def inline_what_waits(ir: str) -> str:
    """Return the IR in which every function that suspends must be inlined into `lab_begin`."""
    bodies = {found[1]: found[0] for found in _DEFINITION.finditer(ir)}
    waiting, todo = set(), ["lab_suspend"]
    while todo:
        call = re.compile(rf"call [^\n]*@{re.escape(todo.pop())}\(")
        new = {name for name, body in bodies.items() if call.search(body)} - waiting
        waiting |= new
        todo += new - {"lab_begin"}
    groups, made = dict(_GROUP.findall(ir)), {}

    def rewritten(found: re.Match) -> str:
        if found[1] not in waiting or found[1] == "lab_begin":
            return found[0]
        head, _, body = found[0].partition("\n")
        group = re.search(r" #(\d+)", head)[1]
        made[group] = _NO_INLINE.sub("", groups[group])
        head = head.replace(f" #{group}", f" #{_INLINED + int(group)}", 1)
        return f"{_COMDAT.sub('', _LINKAGE.sub('define internal ', head))}\n{body}"

    text = _DEFINITION.sub(rewritten, ir)
    added = (f"attributes #{_INLINED + int(n)} = {{ alwaysinline {a} }}" for n, a in made.items())
    return "\n".join((text, *added, ""))


def suspendable(ir: str) -> str:
    """Return the IR in which `lab_begin` is a coroutine.

    Raises: ValueError if a function besides it suspends.
    """
    found = next(found for found in _DEFINITION.finditer(ir) if found[1] == "lab_begin")
    body, group = found[0], re.search(r" #(\d+)", found[0].partition("\n")[0])[1]
    frame = _ENTER.search(body)[1]
    begin = (
        "  %coro.id = call token @llvm.coro.id(i32 64, ptr null, ptr null, ptr null)\n"
        "  %coro.bytes = call i32 @llvm.coro.size.i32()\n"
        "  %coro.memory = call ptr @lab_frame(i32 %coro.bytes)\n"
        f"  {frame} = call ptr @llvm.coro.begin(token %coro.id, ptr %coro.memory)"
    )
    count = iter(range(len(body)))

    def suspension(call: re.Match) -> str:
        name = f"%coro.suspend.{next(count)}"
        first = f"  {name} = call i8 @llvm.coro.suspend(token none, i1 false)"
        return f"{first}\n  {call[1]} = icmp ne i8 {name}, 0"

    body = body.replace(f" #{group}", f" #{_COROUTINE}", 1)
    body = _SUSPEND.sub(suspension, _ENTER.sub(begin, body))
    body = _LEAVE.sub("  br label %coro.leave", body)
    body = re.sub(r"^  ret ptr [^\n]*$", "  br label %coro.leave", body, flags=re.MULTILINE)
    end = f"  call void @llvm.coro.end(ptr {frame}, i1 false, token none)\n  ret ptr {frame}"
    body = f"{body[:-1]}\ncoro.leave:\n{end}\n}}"
    attributes = dict(_GROUP.findall(ir))[group]
    text = ir[: found.start()] + body + ir[found.end() :]
    if left := re.search(r"call [^\n]*@(?:lab_suspend|lab_leave|lab_enter)\(", text):
        raise ValueError(f"LLVM IR has `{left[0]}`; allowed: in lab_begin, before the coroutine")
    return f"{text}\nattributes #{_COROUTINE} = {{ presplitcoroutine {attributes} }}{_DECLARATIONS}"


def numbered_accesses(ir: str) -> tuple[str, dict[str, str]]:
    """Return the IR that notes the number of each access before its check, and their source lines.

    The checks of a native build read a return address, which WebAssembly does not have.
    """
    metadata, places = dict(_METADATA.findall(ir)), {}

    def noted(call: re.Match) -> str:
        places[call[2]] = _source_line(call[2], metadata)
        return f"  store i32 {int(call[2]) + 1}, ptr @lab_here, align 4\n{call[0]}"

    text = _ACCESS.sub(noted, ir)
    return text.replace("\ndeclare ", "\n@lab_here = external global i32\n\ndeclare ", 1), places


def _source_line(number: str, metadata: dict[str, str]) -> str:
    """Return the innermost inlined line outside the machine's own words: "mma/kernel.cuh:71"."""
    while number:
        row = metadata[number]
        name = _file_of(_field(row, "scope"), metadata)
        if "/lab/host/" not in name:
            return f"{'/'.join(name.split('/')[-3:])}:{_field(row, 'line')}"
        number = _field(row, "inlinedAt")
    return "an unknown line"


def _file_of(scope: str, metadata: dict[str, str]) -> str:
    while scope and "file:" not in metadata[scope]:
        scope = _field(metadata[scope], "scope")
    return _field(metadata[_field(metadata[scope], "file")], "filename") if scope else ""


def _field(row: str, name: str) -> str:
    """Return a number or a string of a node; empty where it has none."""
    found = re.search(rf'\b{name}: (?:!?(\d+)|"([^"]*)")', row)
    return (found[1] or found[2]) if found else ""
