"""Rows as a Parquet file: written the same way each time, read with every cell checked.

pyarrow is imported when a file is read or written, since a GPU machine may lack it.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labkernels.records import schema
from labkernels.records.schema import BOOLEAN, INTEGER, STRING, Field, Table, parse

SUFFIX = ".parquet"
# A page has a checksum, so that a damaged byte is found even where no description lies beside it.
_WRITTEN = {
    "compression": "zstd",
    "compression_level": 19,
    "data_page_version": "2.0",
    "store_schema": False,
    "write_page_checksum": True,
    "write_statistics": False,
}


class Missing(ValueError):
    """A Parquet file cannot be read or written here, since pyarrow is not installed."""


def content(rows: Iterable[Mapping[str, Any]], table: Table) -> bytes:
    """Return the bytes of a file that holds these checked rows; an empty cell is null.

    The same rows give the same bytes, as long as pyarrow has the same version.

    Raises: ValueError for an integer of more than 64 bits; Missing without pyarrow.

    >>> from labkernels.records.schema import TABLES
    >>> read("a.parquet", content([], TABLES["chaos"]))
    []
    """
    arrow, reader = _pyarrow()
    rows, columns = list(rows), []
    for field in table.fields:
        cells = [None if row[field.name] == "" else row[field.name] for row in rows]
        try:
            columns.append(arrow.array(cells, _type(field, arrow)))
        except (OverflowError, arrow.ArrowException) as error:
            raise ValueError(f"{field.name} does not fit its type {field.type}: {error}") from None
    made, numbers = arrow.table(columns, names=list(table.columns)), {}
    for field in table.fields:
        if _type(field, arrow) == arrow.float64():
            numbers[field.name] = "BYTE_STREAM_SPLIT"
    others = [name for name in table.columns if name not in numbers]
    # the bytes of most tables' numbers compress better apart, those of numbers that repeat do not
    both: list[dict[str, Any]] = [{}, {"column_encoding": numbers, "use_dictionary": others}]
    files = [io.BytesIO() for _ in both]
    for file, how in zip(files, both, strict=True):
        reader.write_table(made, file, **_WRITTEN, **how)
    return min((file.getvalue() for file in files), key=len)


def table_of(name: str, content: bytes) -> Table:
    """Return the table whose columns a file has, by name and by type.

    Raises: ValueError naming the file, if it is damaged or no table has its columns.
    """
    arrow, reader = _pyarrow()
    try:
        found = reader.read_schema(arrow.BufferReader(content))
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(_damaged(name, error)) from None
    try:
        table = schema.table_of(tuple(found.names))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    for field in table.fields:
        type_found, type_wanted = found.field(field.name).type, _type(field, arrow)
        if type_found != type_wanted:
            raise ValueError(
                f"{name}: column {field.name} has type {type_found}; allowed: {type_wanted}"
            )
    return table


def read(name: str, content: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file, every cell checked.

    Raises: ValueError naming the file, and of a bad cell its row and column; Missing without
    pyarrow.
    """
    table = table_of(name, content)
    arrow, reader = _pyarrow()
    texts = [field.name for field in table.fields if field.type == STRING]
    try:
        found = reader.read_table(
            arrow.BufferReader(content), read_dictionary=texts, page_checksum_verification=True
        )
        found.validate(full=True)  # a damaged file may point beyond its own texts
        columns = [_cells(found.column(field.name), field) for field in table.fields]
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(_damaged(name, error)) from None
    for field, cells in zip(table.fields, columns, strict=True):
        _check(name, field, cells)
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Missing(
            "pyarrow, which reads and writes Parquet files, is not installed: pip install pyarrow"
        ) from None
    return pyarrow, pyarrow.parquet


def _type(field: Field, arrow: Any) -> Any:
    if field.type == STRING:
        return arrow.string()
    if field.type == BOOLEAN:
        return arrow.bool_()
    return arrow.int64() if field.type == INTEGER else arrow.float64()


def _cells(column: Any, field: Field) -> list[Any]:
    """Return the cells of a column as parse returns them; equal texts are one object."""
    cells: list[Any] = []
    for chunk in column.chunks:
        if field.type == STRING:
            words = chunk.dictionary.to_pylist()
            cells += ["" if i is None else words[i] for i in chunk.indices.to_pylist()]
        else:
            cells += chunk.to_pylist()
    if column.null_count and field.type != STRING:
        cells = ["" if cell is None else cell for cell in cells]
    return cells


def _check(name: str, field: Field, cells: Sequence[Any]) -> None:
    """Ask of each distinct cell of a column what parse asks; Arrow has seen to the type."""
    for cell in set(cells):
        try:
            parse(field, cell)
        except ValueError as error:
            wrong = (i for i, other in enumerate(cells, 1) if other is cell or other == cell)
            raise ValueError(f"{name}, row {next(wrong)}: {error}") from None


def _damaged(name: str, error: Exception) -> str:
    return f"{name} is damaged or cut: {' '.join(str(error).split())}"
