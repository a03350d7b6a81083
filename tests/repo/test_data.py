"""Every data file is described, validates against its description, and is the file described."""

import json
import re

import pytest

from labkernels import cli
from labkernels.records import datapackage
from tests.repo.files import ROOT, project_files, read

DATA = ROOT / "data"
DESCRIPTION = DATA / "datapackage.json"
CSV_BYTES_MAX = 100_000
TABLES_BYTES_MAX = 1 << 20


def resources():
    return json.loads(DESCRIPTION.read_text(encoding="utf-8"))["resources"]


def test_a_source_that_names_a_data_file_names_its_folder():
    found = set()
    for path in project_files():
        if path.parts[0] == "labkernels" and path.suffix in (".py", ".cuh"):
            found |= set(re.findall(r"\bdata/[\w/]+\.(?:csv|parquet|toml|json|npz)\b", read(path)))
    assert found
    assert [name for name in sorted(found) if not (ROOT / name).exists()] == []


def test_files_say_what_they_hold_and_tables_what_each_column_is():
    for resource in resources():
        assert resource.get("title"), resource["path"]
        for field in resource.get("schema", {}).get("fields", []):
            assert field.get("description"), f"{resource['path']}: {field['name']}"


def test_a_large_table_is_parquet():
    """A recording rewrites its table: as CSV, thousands of lines, compressed, kilobytes."""
    tables = [resource for resource in resources() if resource["type"] == "table"]
    sizes = {resource["path"]: resource["bytes"] for resource in tables}
    assert {path.rpartition(".")[2] for path in sizes} == {"csv", "parquet"}
    large = {path: size for path, size in sizes.items() if size > CSV_BYTES_MAX}
    assert [path for path in large if path.endswith(".csv")] == []
    assert sum(sizes.values()) < TABLES_BYTES_MAX


WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning:frictionless")
# frictionless leaves files that are no tables to the garbage collector to close
LEAVES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def errors(report):
    return report.flatten(["title", "rowNumber", "fieldName", "note"])


@WARNS
@LEAVES
@pytest.mark.long
def test_frictionless_finds_no_error(tmp_path):
    """All rows are read as CSV, since frictionless reads Parquet row by row, for minutes."""
    from frictionless import Package

    export = tmp_path / "data"
    assert cli.main(["data", "export", "--to", str(export)]) == 0
    report = Package(str(datapackage.write(export))).validate()
    assert len(report.tasks) == sum(resource["type"] == "table" for resource in resources())
    assert report.valid, errors(report)
