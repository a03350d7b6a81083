"""The archive of `data/` that a release has: fetched, unpacked, checked against its description."""

import io
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

from labkernels.records import files


def address(release: str) -> str:
    """Return the address of the archive of a release such as "v0.1.0"."""
    urls = metadata.metadata("labkernels").get_all("Project-URL") or []
    repository = dict(url.split(", ", 1) for url in urls)["Repository"]
    return f"{repository}/releases/download/{release}/labkernels-data-{release}.tar.gz"


def fetch(source: str, folder: Path) -> int:
    """Unpack the archive of an address or a file into a new folder; return how many files it has.

    Raises: ValueError if the folder exists, or the archive is damaged or not as described; then
    the folder is not made. OSError if there is no archive.
    """
    if folder.exists():
        raise ValueError(f"to = {folder} exists, allowed: a new folder")
    content = Path(source).read_bytes() if Path(source).is_file() else _download(source)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent) as work:
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
                _unpack(archive, Path(work))
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(f"{source} is not an archive of data: {error}") from None
        found = [path.parent for path in Path(work).glob(f"*/data/{files.DESCRIPTION}")]
        if len(found) != 1:
            raise ValueError(f"{source} has no data/{files.DESCRIPTION}")
        described = files.read_description(found[0])
        for name in described:
            if not (found[0] / name).is_file():
                raise ValueError(f"{source} lacks {name}, which {files.DESCRIPTION} describes")
            files.read_described(found[0] / name)
        found[0].rename(folder)
    return len(described)


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the plain files of an archive into a folder; tarfile of Python 3.11.3 has no filter."""
    for member in archive:
        place = (folder / member.name).resolve()
        if not place.is_relative_to(folder.resolve()) or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name} is not a plain file inside it")
        content = archive.extractfile(member)
        if content is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.read())


def _download(source: str) -> bytes:
    if not source.startswith(("https://", "file://")):
        raise ValueError(f"from = {source}, allowed: a file, or an address that begins https://")
    try:
        with urlopen(source, timeout=60) as answer:
            return answer.read()
    except OSError as error:
        raise OSError(
            f"no archive came from {source}: {error}; allowed: a release's tag, or --from with the"
            " address or the file of an archive"
        ) from error
