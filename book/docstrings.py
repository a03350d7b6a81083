"""A Sphinx extension that shows the package's docstrings as the plain text that they are.

A line such as "Shapes: q [B, Hq, D]" or "causal: ..." starts a part, which ends where the next one
starts or at an empty line. The characters of reStructuredText's markup are shown as they stand.
"""

import re

PART = re.compile(r"^([A-Za-z]\w*(?:, \w+)*): +(?=\S)")
CODE = re.compile(r"(`[^`]+`)")
MARKUP = re.compile(r"([\\*`|_])")


def plain(lines: list[str]) -> list[str]:
    """Returns a docstring's lines as reStructuredText that says the same."""
    shown, inside, example = [_literal(line) for line in lines[:1]], False, False
    for line in lines[1:]:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        part = None if example else PART.match(line)
        if part and not inside and shown[-1]:
            shown.append("")
        inside = bool(part) or (inside and bool(line.strip()))
        text = line if example else _literal(line)
        if part:
            text = f":{_literal(part[1])}: {_literal(line[part.end() :])}"
        shown.append("    " + text if inside and not part else text)
    return shown


def _literal(text: str) -> str:
    """Escapes all markup in a text except `names`, which are shown as code."""
    parts = CODE.split(text)
    parts[0::2] = [MARKUP.sub(r"\\\1", part) for part in parts[0::2]]
    parts[1::2] = [f"`{name}`" for name in parts[1::2]]
    return "".join(parts)


def setup(app) -> dict:
    """Connects the extension; Sphinx calls this function."""

    def replace(app, what, name, obj, options, lines) -> None:
        lines[:] = plain(lines)

    app.connect("autodoc-process-docstring", replace)
    return {"version": "1", "parallel_read_safe": True}
