"""Every data file is described, validates against its description, and is the file described."""

import hashlib
import json
import re

import pytest

from tests.repo.files import ROOT, project_files, read

DATA = ROOT / "data"
DESCRIPTION = DATA / "datapackage.json"
NOT_DATA = {"datapackage.json", "README.md"}


def resources():
    return json.loads(DESCRIPTION.read_text(encoding="utf-8"))["resources"]


def test_every_file_is_described():
    files = {str(p.relative_to("data")) for p in project_files() if p.parts[0] == "data"}
    assert files - NOT_DATA == {resource["path"] for resource in resources()}


def test_every_file_is_the_one_described():
    for resource in resources():
        content = (DATA / resource["path"]).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        assert resource["hash"] == f"sha256:{digest}", resource["path"]
        assert resource["bytes"] == len(content), resource["path"]


def test_a_source_that_names_a_data_file_names_its_folder():
    found = set()
    for path in project_files():
        if path.parts[0] == "labkernels" and path.suffix in (".py", ".cuh"):
            found |= set(re.findall(r"\bdata/[\w/]+\.(?:csv|parquet|toml|json|npz)\b", read(path)))
    assert found
    assert [name for name in sorted(found) if not (ROOT / name).exists()] == []


def test_tables_say_what_each_column_is():
    for resource in resources():
        for field in resource.get("schema", {}).get("fields", []):
            assert field.get("description"), f"{resource['path']}: {field['name']}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:frictionless")
# frictionless leaves files that are no tables to the garbage collector to close
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_frictionless_finds_no_error():
    from frictionless import Package

    report = Package(str(DESCRIPTION)).validate()
    assert report.valid, report.flatten(["title", "rowNumber", "fieldName", "note"])
