"""The formulas of a kernel, term by term with every constant named, as tables for notebooks."""

import html
from collections.abc import Iterable

from labkernels.budget.ledger import Ledger, Line
from labkernels.measure.resources import Resources

Rows = list[tuple[str, str, str]]  # what, by which formula, how much
SHARED = "of lines that take turns in the same space, the largest counts"


class Equations:
    """What a block takes of an SM, as three tables: a row for each term of a formula, and a total.

    names: what the formulas derive.
    """

    names = ("shared memory", "registers needed", "registers", "blocks per SM")

    def __init__(self, found: Resources) -> None:
        self.tables = {
            "shared memory per block": _bytes(found),
            "registers per thread": _registers(found),
            "blocks per SM": _blocks(found),
        }

    def __str__(self) -> str:
        rows = (
            f"{title}: {' | '.join(row)}" for title, table in self.tables.items() for row in table
        )
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        return "\n".join(_table(title, rows) for title, rows in self.tables.items())


def counted_lines(ledger: Ledger) -> list[Line]:
    """Return the lines that make up the total: of a union, the lines of its largest phase."""
    unions: dict[str, dict[str, list[Line]]] = {}
    for line in ledger.lines:
        union = line.shares or f"line {line.name}"
        unions.setdefault(union, {}).setdefault(line.phase or line.name, []).append(line)
    return [
        line
        for phases in unions.values()
        for line in max(phases.values(), key=lambda lines: sum(each.amount for each in lines))
    ]


def _terms(ledger: Ledger, unit: str) -> Rows:
    """Return a row for each line; an amount that takes turns and does not count is bracketed."""
    counted = counted_lines(ledger)
    rows = []
    for line in ledger.lines:
        formula = line.formula.replace(" x ", " × ")
        if line.note:
            formula += f" ({line.note})"
        amount = f"{line.amount:,}{unit}"
        rows.append((line.name, formula, amount if line in counted else f"[{amount}]"))
    return rows


def _bytes(found: Resources) -> Rows:
    rows = _terms(found.smem, " B")
    shared = any(line.shares for line in found.smem.lines)
    rows.append(("sum", SHARED if shared else "", f"{found.smem.total:,} B"))
    if found.compiled is not None:
        rows.append(("the compiler's number", "", f"{found.compiled.smem_bytes:,} B"))
    return rows


def _registers(found: Resources) -> Rows:
    predicted = found.predicted
    rows = _terms(predicted.ledger, "")
    rows.append(("sum", "what a thread needs", f"{predicted.ledger.total:,}"))
    if predicted.merge:
        words = "fitted: partial results in flight, after the loop"
        rows.append(("merge of splits", words, f"{predicted.merge:,}"))
    limit = "of a thread, by the block's size and the blocks that must share an SM"
    rows.append(("limit at launch", limit, f"{predicted.limit:,}"))
    if predicted.trades:
        words = "of a thread that computes, after warps that load have handed theirs over"
        rows.append(("limit after the exchange", words, f"{predicted.thread_limit:,}"))
    words = "the limit, since registers are handed over" if predicted.trades else "the least above"
    rows.append(("predicted at launch", words, f"{predicted.registers:,}"))
    if found.compiled is not None:
        rows.append(("the compiler's number", "", f"{found.compiled.registers:,}"))
    return rows


def _blocks(found: Resources) -> Rows:
    fit, gpu = found.occupancy, found.gpu
    used = found.compiled.registers if found.compiled else found.predicted.registers
    threads, reserved = found.instance.tile.threads, gpu.smem_reserved_per_block_bytes
    smem = f"{gpu.smem_per_sm_bytes:,} B / ({found.smem.total:,} B + {reserved:,} B reserved)"
    rows = [
        (
            "by registers",
            f"{gpu.registers_per_sm:,} / ({used} × {threads} threads), in whole warps",
            f"{fit.by_registers}",
        ),
        ("by shared memory", smem, f"{fit.by_smem}"),
        ("by warps", f"{gpu.warps_per_sm_max} / {-(-threads // 32)} of a block", f"{fit.by_warps}"),
        ("by blocks", "of any kind, at most", f"{fit.by_blocks}"),
    ]
    rows.append((f"blocks on an SM of {gpu.name}", "the least", f"{fit.blocks_per_sm}"))
    return rows


def _table(title: str, rows: Iterable[tuple[str, str, str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    head = f"<th>{html.escape(title)}</th><th>formula</th><th>amount</th>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
