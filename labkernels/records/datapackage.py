"""`data/datapackage.json`: fields, units, size and hash of every file in `data/`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkernels.records import csv_text, files, parquet, store
from labkernels.records.files import DESCRIPTION as FILE_NAME

_MEDIA_TYPES = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".parquet": "application/vnd.apache.parquet",
    ".toml": "application/toml",
}
_TABLES = {".csv": csv_text.table_of, parquet.SUFFIX: parquet.table_of}

_TITLES = {  # of files that are no tables
    "activations.npz": "Q, K and V in bf16 of seven KV heads of SmolLM2 on 8,192 tokens of text.",
    "ex2_sm90.json": "The parabolas by which an H200 computes ex2.approx.",
    "targets.toml": "What the kernels should reach, and why.",
    "tensor_core_sm90.npz": "Tiles of numbers, and what an H200's tensor cores made of them.",
    "weights.npz": "The weights of a very small language model, in 8 bits with scales of rows.",
}


def describe(
    data_dir: Path = store.DATA_DIR, changed: Iterable[Path] | None = None
) -> dict[str, Any]:
    """Return the Frictionless descriptor of the files that a folder holds.

    changed: the files that may differ from the written descriptor, by default all. The written
    description of every other file is kept.

    Raises: ValueError for a table that is cut or whose columns records.schema does not know.
    """
    data_dir = Path(data_dir)
    kept = {}
    if changed is not None and (data_dir / FILE_NAME).is_file():
        renewed = {Path(path).relative_to(data_dir).as_posix() for path in changed}
        written = files.read_description(data_dir)
        kept = {name: found for name, found in written.items() if name not in renewed}
    paths = sorted(path for path in data_dir.rglob("*") if _is_data(path, data_dir))
    return {
        "profile": "data-package",
        "name": "labkernels-data",
        "title": "Measurements, tables and targets of labkernels",
        "licenses": [
            {
                "name": "CC-BY-4.0",
                "title": "Creative Commons Attribution 4.0",
                "path": "https://creativecommons.org/licenses/by/4.0/",
            }
        ],
        "resources": [
            kept.get(path.relative_to(data_dir).as_posix()) or _resource(path, data_dir)
            for path in paths
        ],
    }


def write(data_dir: Path = store.DATA_DIR, changed: Iterable[Path] | None = None) -> Path:
    """Write the descriptor into the folder, anew for changed files, and return its path."""
    path = Path(data_dir) / FILE_NAME
    with files.one_writer(path.parent):
        text = json.dumps(describe(data_dir, changed), indent=2, ensure_ascii=False) + "\n"
        files.replace(path, text.encode("utf-8"))
    return path


def differences(data_dir: Path = store.DATA_DIR) -> list[str]:
    """Return one line for each file that the written descriptor does not describe as it is."""
    path = Path(data_dir) / FILE_NAME
    if not path.exists():
        return [f"{FILE_NAME} is missing"]
    recorded = files.read_description(path.parent)
    actual = {resource["path"]: resource for resource in describe(data_dir)["resources"]}
    lines = [f"{name} is described but not there" for name in sorted(recorded.keys() - actual)]
    lines += [f"{name} is not described" for name in sorted(actual.keys() - recorded)]
    shared = sorted(actual.keys() & recorded)
    lines += [f"{name} has changed" for name in shared if actual[name] != recorded[name]]
    return lines


def _is_data(path: Path, data_dir: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(data_dir).parts)
    is_about_data = path.name in (FILE_NAME, "README.md")
    return path.is_file() and not hidden and not is_about_data and path.suffix != ".part"


def _resource(path: Path, data_dir: Path) -> dict[str, Any]:
    relative = path.relative_to(data_dir)
    content = path.read_bytes()
    resource: dict[str, Any] = {
        "type": "table" if path.suffix in _TABLES else "file",
        "name": relative.as_posix().lower().replace("/", "-").replace(".", "-"),
        "path": relative.as_posix(),
        "format": path.suffix.lstrip("."),
        "mediatype": _MEDIA_TYPES.get(path.suffix, "application/octet-stream"),
        "bytes": len(content),
        "hash": files.sha256(content),
    }
    if path.suffix in _TABLES:
        table = _TABLES[path.suffix](path.name, content)
        resource |= {"profile": "tabular-data-resource"}
        resource |= {"encoding": "utf-8"} if path.suffix == ".csv" else {}
        fields = [field.described for field in table.fields]
        resource |= {"title": table.title, "schema": {"fields": fields, "missingValues": [""]}}
    elif title := _TITLES.get(path.name):
        resource["title"] = title
    return resource
