"""A description names every file with its hash, and a fetched archive is checked against it."""

import hashlib
import io
import subprocess
import tarfile

import pytest

from labkernels import cli
from labkernels.records import archive, datapackage, files, store
from tests.repo.files import ROOT


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


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return the archive as the release's workflow makes it."""
    path = tmp_path_factory.mktemp("release") / "labkernels-data-v9.tar.gz"
    given = ["--prefix=labkernels-data-v9/", "-o", str(path), "HEAD", "data", "LICENSE-text"]
    subprocess.run(["git", "archive", *given], cwd=ROOT, check=True)
    return path


def test_an_archive_is_fetched_and_checked(packed, tmp_path, capsys):
    folder = tmp_path / "new" / "rows"
    assert cli.main(["data", "fetch", "--from", str(packed), "--to", str(folder)]) == 0
    assert "all as described" in capsys.readouterr().out
    described = files.read_description(folder)
    assert len(described) > 20
    assert all((folder / name).is_file() for name in described)
    with pytest.raises(ValueError, match="exists, allowed: a new folder"):
        archive.fetch(str(packed), folder)


@pytest.mark.parametrize("address", ["file://{}", "{}"])
def test_a_changed_row_is_refused(packed, tmp_path, address):
    damaged = tmp_path / "damaged.tar.gz"
    with tarfile.open(packed) as old, tarfile.open(damaged, "w:gz") as new:
        for member in old.getmembers():
            content = old.extractfile(member).read() if member.isfile() else b""
            if member.name.endswith("data/performance/mla.parquet"):
                content = content.replace(b"9", b"8", 1)
            new.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match=r"mla.parquet is not the file that datapackage.json"):
        archive.fetch(address.format(damaged), tmp_path / "rows")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.tar.gz"]


def test_what_is_no_archive_or_does_not_come_is_told(tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="is not an archive of data"):
        archive.fetch(str(tmp_path / "text"), tmp_path / "rows")
    with pytest.raises(ValueError, match="allowed: a file, or an address that begins https://"):
        archive.fetch(str(tmp_path / "missing"), tmp_path / "rows")
    name = "labkernels-data-v0.1.0.tar.gz"
    assert archive.address("v0.1.0").endswith(f"/releases/download/v0.1.0/{name}")
    monkeypatch.setattr(archive, "address", lambda release: f"file://{tmp_path}/{release}.tar.gz")
    assert cli.main(["data", "fetch", "v9", "--to", str(tmp_path / "rows")]) != 0
    told = capsys.readouterr().err
    assert f"no archive came from file://{tmp_path}/v9.tar.gz" in told
    assert "--from with the address or the file" in told
    assert not (tmp_path / "rows").exists()
