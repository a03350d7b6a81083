"""Makes a large WebAssembly program smaller: functions and constants that are not needed go.

A function that goes keeps its number, and traps if it is called. Constants that go become zeros,
which compress to nothing.
"""

import bisect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PAGE = 1 << 16  # bytes of constants that stay or go together
_IMPORT, _CODE, _DATA, _CUSTOM = 2, 10, 11, 0
_STUB = b"\x03\x00\x00\x0b"  # a body of 3 bytes: no locals, unreachable, end
_CALLS = (0x10, 0x12, 0xD2)  # call, return_call, ref.func
_BLOCK_MEMORY = {8: 2, 9: 1, 10: 2, 11: 1, 12: 2, 13: 1, 14: 2, 15: 1, 16: 1, 17: 1}  # 0xfc
_ONE_INDEX = {*range(0x20, 0x27), 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x09, 0x0C, 0x0D}
_ONE_INDEX |= {0x18, 0x3F, 0x40, 0x42, 0xD0}


@dataclass
class Reader:
    """Bytes, and where the next one is read."""

    content: bytes
    at: int = 0

    def number(self) -> int:
        """Reads an unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        """Reads a signed LEB128 number of at most 32 bits; returns it modulo 2^32."""
        begin, value = self.at, self.number()
        bits = 7 * (self.at - begin)
        return (value - (1 << bits) if value >> (bits - 1) else value) % 2**32

    def skip(self, numbers: int) -> None:
        """Passes numbers by."""
        for _ in range(numbers):
            while self.content[self.at] > 127:
                self.at += 1
            self.at += 1

    def name(self) -> str:
        """Reads a text and its length."""
        n = self.number()
        self.at += n
        return self.content[self.at - n : self.at].decode("utf-8", "replace")


@dataclass
class Program:
    """A program: its sections, its functions' bodies by number, and their names."""

    content: bytes
    sections: list[tuple[int, int, int]] = field(default_factory=list)  # kind, begin, end
    bodies: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> begin, end
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reads where everything lies."""
        reader = Reader(self.content, 8)
        while reader.at < len(self.content):
            kind = self.content[reader.at]
            reader.at += 1
            n = reader.number()
            self.sections.append((kind, reader.at, reader.at + n))
            reader.at += n
        imported = self._imported()
        reader.at = self._section(_CODE)
        for number in range(imported, imported + reader.number()):
            n = reader.number()
            self.bodies[number] = reader.at, reader.at + n
            reader.at += n
        for kind, begin, end in self.sections:
            names = Reader(self.content, begin)
            if kind == _CUSTOM and names.name() == "name":
                self._read_names(names, end)

    def _section(self, wanted: int) -> int:
        return next(begin for kind, begin, _ in self.sections if kind == wanted)

    def _imported(self) -> int:
        """Returns the number of imported functions."""
        reader, functions = Reader(self.content, self._section(_IMPORT)), 0
        for _ in range(reader.number()):
            reader.name(), reader.name()
            kind = self.content[reader.at]
            if kind != 0:
                raise ValueError(f"import of kind {kind}, allowed: functions")
            reader.at += 1
            reader.skip(1)
            functions += 1
        return functions

    def _read_names(self, reader: Reader, end: int) -> None:
        while reader.at < end:
            kind = self.content[reader.at]
            reader.at += 1
            n = reader.number()
            after = reader.at + n
            if kind == 1:  # of functions
                for _ in range(reader.number()):
                    number = reader.number()
                    self.names[number] = reader.name()
            reader.at = after

    def range_of(self, first: str, last: str) -> range:
        """Returns the functions from one name to another, in the order of the linker.

        Raises: ValueError for a name that no function has, or several.
        """
        ends = []
        for wanted in (first, last):
            found = [number for number, name in self.names.items() if name == wanted]
            if len(found) != 1:
                raise ValueError(f"{wanted} is the name of {len(found)} functions, allowed: 1")
            ends += found
        return range(ends[0], ends[1] + 1)

    def needed(self, roots: set[int], unused: Callable[[str], object]) -> tuple[set, set]:
        """Returns the functions that the roots call, step by step, and the addresses in them.

        unused: says of a name that its function goes, whoever calls it.
        """

        def gone(number: int) -> object:
            return unused(self.names.get(number, ""))

        work = [number for number in roots if number in self.bodies and not gone(number)]
        found, addresses = set(work), set()
        while work:
            for is_call, value in self._immediates(*self.bodies[work.pop()]):
                if not is_call:
                    addresses.add(value)
                elif value in self.bodies and value not in found and not gone(value):
                    found.add(value)
                    work.append(value)
        return found, addresses

    def _immediates(self, begin: int, end: int) -> Iterator[tuple[bool, int]]:
        """Yields (True, function) for a call and (False, number) for what may be an address."""
        reader, content = Reader(self.content, begin), self.content
        for _ in range(reader.number()):
            reader.skip(2)
        while reader.at < end:
            code = content[reader.at]
            reader.at += 1
            if code in _CALLS:
                yield True, reader.number()
            elif code == 0x41:
                yield False, reader.signed()
            elif 0x28 <= code <= 0x3E:
                yield False, _memory(reader)
            elif code == 0xFC:
                reader.skip(_BLOCK_MEMORY.get(reader.number(), 0))
            elif code in (0xFD, 0xFE):
                yield from _vector(reader, code)
            else:
                _others(reader, code)
        if reader.at != end:
            raise ValueError(f"a function ends at {reader.at}, and its body at {end}")

    def reduced(self, kept: set[int], addresses: set[int], zeros: range) -> bytes:
        """Returns the program with these functions alone, and without names.

        Of the constants in `zeros`, the pages stay that hold one of the addresses.
        """
        out = bytearray(self.content[:8])
        pages = {address // PAGE for address in addresses}
        gone = [page * PAGE for page in range(zeros.start // PAGE, zeros.stop // PAGE)]
        gone = [address for address in gone if address // PAGE not in pages]
        for kind, begin, end in self.sections:
            content = bytearray(self.content[begin:end])
            if kind == _CODE:
                content = bytearray(_number(len(self.bodies)))
                for number, (first, last) in self.bodies.items():
                    body = _number(last - first) + self.content[first:last]
                    content += body if number in kept else _STUB
            elif kind == _DATA:
                self._clear(content, gone)
            if kind != _CUSTOM:
                out += bytes([kind]) + _number(len(content)) + content
        return bytes(out)

    def _clear(self, content: bytearray, gone: list[int]) -> None:
        """Fills the pages at these addresses with zeros."""
        reader = Reader(bytes(content))
        for _ in range(reader.number()):
            reader.skip(1)  # flags
            reader.at += 1  # i32.const
            address = reader.signed()
            reader.at += 1  # end
            n = reader.number()
            for page in gone[bisect.bisect_left(gone, address) :]:
                if page + PAGE <= address + n:
                    at = reader.at + page - address
                    content[at : at + PAGE] = bytes(PAGE)
            reader.at += n


def _memory(reader: Reader) -> int:
    """Returns the offset of an access, which is an address where the base is 0."""
    if reader.number() & 64:  # the number of a memory follows the alignment
        reader.skip(1)
    return reader.number()


def _vector(reader: Reader, code: int) -> Iterator[tuple[bool, int]]:
    """Passes an instruction of SIMD or an atomic one by, and yields its offset."""
    which = reader.number()
    if code == 0xFE:
        if which == 3:  # a fence
            reader.at += 1
        else:
            yield False, _memory(reader)
    elif which <= 11 or 84 <= which <= 93:
        yield False, _memory(reader)
        reader.at += 84 <= which <= 91  # a lane
    elif which in (12, 13):  # 16 bytes
        reader.at += 16
    elif 21 <= which <= 34:  # a lane
        reader.at += 1


def _others(reader: Reader, code: int) -> None:
    """Passes the immediates of an instruction by that has no address and calls no function."""
    if code in _ONE_INDEX:
        reader.skip(1)
    elif code in (0x11, 0x13):  # indirect calls
        reader.skip(2)
    elif code in (0x43, 0x44):
        reader.at += 4 if code == 0x43 else 8
    elif code == 0x0E:  # br_table
        reader.skip(reader.number() + 1)
    elif code == 0x1C:
        reader.skip(reader.number())
    elif code == 0x1F:  # try_table
        reader.skip(1)
        for _ in range(reader.number()):
            kind = reader.number()
            reader.skip(2 if kind in (0, 1) else 1)


def _number(value: int) -> bytes:
    """Returns an unsigned LEB128 number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def named(pattern: str) -> Callable[[str], object]:
    """Returns whether a name begins with a pattern."""
    return re.compile(pattern).match
