import io
import subprocess
import tarfile

import pytest

from labkernels import cli
from labkernels.records import archive, files
from tests.repo.files import ROOT


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


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="is not an archive of data"):
        archive.fetch(str(tmp_path / "text"), tmp_path / "rows")
    with pytest.raises(ValueError, match="allowed: a file, or an address that begins https://"):
        archive.fetch(str(tmp_path / "missing"), tmp_path / "rows")


def test_an_archive_that_does_not_come_is_told_with_what_is_allowed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(archive, "address", lambda release: f"file://{tmp_path}/{release}.tar.gz")
    assert cli.main(["data", "fetch", "v9", "--to", str(tmp_path / "rows")]) != 0
    told = capsys.readouterr().err
    assert f"no archive came from file://{tmp_path}/v9.tar.gz" in told
    assert "--from with the address or the file" in told
    assert not (tmp_path / "rows").exists()


def test_the_address_is_that_of_the_release(packed):
    name = "labkernels-data-v0.1.0.tar.gz"
    assert archive.address("v0.1.0").endswith(f"/releases/download/v0.1.0/{name}")
    made = (ROOT / ".github/workflows/release.yml").read_text()
    assert '-o "labkernels-data-$GITHUB_REF_NAME.tar.gz" HEAD data' in made
