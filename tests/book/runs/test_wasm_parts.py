"""A program of which parts go: what is called stays, and what goes traps or is zero."""

import pytest
import wasm_parts
from wasm_parts import PAGE, Program

NAMES = ("begin", "called", "gone", "unused_by_name")
BODIES = (
    b"\x00\x41\x10\x10\x01\x0b",  # i32.const 16, call 1
    b"\x00\x41\x00\x28\x02\x80\x80\x04\x1a\x0b",  # i32.const 0, i32.load offset=65536, drop
    b"\x00\x10\x03\x0b",  # call 3
    b"\x00\x0b",
)


def sized(content: bytes) -> bytes:
    return wasm_parts._number(len(content)) + content


def listed(*parts: bytes) -> bytes:
    return wasm_parts._number(len(parts)) + b"".join(parts)


def module() -> bytes:
    data = b"\x00\x41\x00\x0b" + sized(b"\x07" * (3 * PAGE))
    named = (wasm_parts._number(i) + sized(name.encode()) for i, name in enumerate(NAMES))
    names = b"\x01" + sized(listed(*named))
    sections = (
        (1, listed(b"\x60\x00\x00")),
        (2, listed()),
        (3, listed(*[b"\x00"] * len(BODIES))),
        (5, listed(b"\x00\x03")),
        (10, listed(*map(sized, BODIES))),
        (11, listed(data)),
        (0, sized(b"name") + names),
    )
    return b"\x00asm\x01\x00\x00\x00" + b"".join(bytes([k]) + sized(s) for k, s in sections)


def body(program: Program, number: int) -> bytes:
    begin, end = program.bodies[number]
    return program.content[begin:end]


def test_what_the_roots_call_stays_and_the_rest_traps():
    whole = Program(module())
    assert list(whole.names.values()) == list(NAMES)
    kept, addresses = whole.needed({0}, wasm_parts.named("unused"))
    assert (kept, addresses) == ({0, 1}, {0, 16, PAGE})
    reduced = Program(whole.reduced(kept, addresses, range(0, 3 * PAGE)))
    assert [body(reduced, n) for n in (0, 1)] == [body(whole, n) for n in (0, 1)]
    assert [body(reduced, n) for n in (2, 3)] == [b"\x00\x00\x0b"] * 2
    assert reduced.names == {}


def test_constants_stay_on_the_pages_of_an_address():
    whole = Program(module())
    kept, addresses = whole.needed({0}, wasm_parts.named("unused"))
    content = whole.reduced(kept, addresses, range(0, 3 * PAGE))
    assert content.count(b"\x07" * PAGE) == 2
    assert content.endswith(bytes(PAGE))


def test_a_function_of_the_kept_range_goes_by_its_name():
    whole = Program(module())
    roots = set(whole.range_of("called", "unused_by_name"))
    assert roots == {1, 2, 3}
    assert whole.needed(roots, wasm_parts.named("unused"))[0] == {1, 2}


def test_a_name_that_no_function_has_is_refused():
    with pytest.raises(ValueError, match="0 functions"):
        Program(module()).range_of("begin", "other")
