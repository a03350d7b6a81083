"""Tables with reproducible HTML, so that a replayed notebook can be compared."""

import re
from collections.abc import Mapping

import pandas as pd
from pandas.io.formats.style import Styler


def table(rows: pd.DataFrame, identity: str, formats: Mapping[str, str] | None = None) -> Styler:
    """Return the rows as a table without index; `formats` maps a column to its format string.

    Raises: ValueError naming a format's column that the rows do not have.
    """
    formats = dict(formats or {})
    for column in formats:
        if column not in rows:
            raise ValueError(f"formats has {column!r}, allowed: {', '.join(map(str, rows))}")
    # Percent stand behind a space, as in all texts of the lab.
    spaced = {
        column: lambda value, form=form: re.sub(r"(?<=\d)%", " %", form.format(value))
        for column, form in formats.items()
    }
    return rows.style.hide(axis="index").set_uuid(identity).format(spaced, na_rep="–")
