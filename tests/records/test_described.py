"""A description names every file with its hash."""

import hashlib

import pytest

from labkernels.records import datapackage, store


@pytest.fixture
def data_dir(tmp_path, row):
    store.append(tmp_path / "run.csv", [row])
    (tmp_path / "other.toml").write_text("x = 1\n")
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "ex2.bin").write_bytes(b"\x00\x01")
    (tmp_path / ".hidden").write_text("no")
    return tmp_path


def test_every_file_has_its_size_and_hash_and_a_table_its_fields_and_units(data_dir):
    package = datapackage.describe(data_dir)
    by_path = {resource["path"]: resource for resource in package["resources"]}
    assert sorted(by_path) == ["other.toml", "run.csv", "tables/ex2.bin"]
    binary = by_path["tables/ex2.bin"]
    assert binary["bytes"] == 2
    assert binary["hash"] == "sha256:" + hashlib.sha256(b"\x00\x01").hexdigest()
    fields = {field["name"]: field for field in by_path["run.csv"]["schema"]["fields"]}
    assert fields["power_w"]["unit"] == "W"
    assert fields["dtype"]["constraints"]["enum"] == ["fp16", "bf16", "fp32"]
    assert fields["value"]["constraints"]["required"] is True
    first = datapackage.write(data_dir).read_bytes()
    assert datapackage.write(data_dir).read_bytes() == first


def test_differences_name_each_file_that_changed(data_dir):
    assert datapackage.differences(data_dir) == ["datapackage.json is missing"]
    datapackage.write(data_dir)
    assert datapackage.differences(data_dir) == []
    (data_dir / "other.toml").write_text("x = 2\n")
    (data_dir / "new.toml").write_text("")
    (data_dir / "tables" / "ex2.bin").unlink()
    assert datapackage.differences(data_dir) == [
        "tables/ex2.bin is described but not there",
        "new.toml is not described",
        "other.toml has changed",
    ]


def test_a_table_that_no_schema_knows_is_refused(data_dir):
    (data_dir / "unknown.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"columns \['x', 'y'\] belong to no table"):
        datapackage.describe(data_dir)


def test_the_committed_descriptor_is_current():
    lines = datapackage.differences(store.DATA_DIR)
    assert lines == [], "run: python -m labkernels record --describe"
