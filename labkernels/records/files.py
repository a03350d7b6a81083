"""Files of a data folder: replaced whole, by one writer at a time, and checked by hash."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from labkernels import places

DATA_DIR = places.DATA
DESCRIPTION = "datapackage.json"


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread writes into the folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        yield


def replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader, even after a crash, finds the old or the new content.

    The caller must be the folder's only writer.
    """
    aside = path.with_name(path.name + ".part")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def sha256(content: bytes) -> str:
    """Return a content's hash as a description has it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def require_described(path: Path, content: bytes) -> None:
    """Check the content of a file against the description of its folder.

    The description lies beside the file or one folder above; without one, nothing is checked.

    Raises: ValueError if the file is not described, or is not as described.
    """
    for folder in path.absolute().parents[:2]:
        if (folder / DESCRIPTION).is_file():
            name = path.absolute().relative_to(folder).as_posix()
            if read_description(folder).get(name, {}).get("hash") != sha256(content):
                raise ValueError(
                    f"{name} is not the file that {DESCRIPTION} describes: take the recorded one "
                    "back (git checkout), or, if it was changed on purpose, run "
                    "`labkernels record --describe`"
                )
            break


def read_description(folder: Path) -> dict[str, dict]:
    """Return what a folder's datapackage.json says of each file, by path.

    Raises: ValueError if it is damaged; FileNotFoundError.
    """
    text = (folder / DESCRIPTION).read_bytes()
    try:
        resources = {found["path"]: found for found in json.loads(text)["resources"]}
        if all(isinstance(found["hash"], str) for found in resources.values()):
            return resources
        raise ValueError("a hash is not text")
    except (ValueError, KeyError, TypeError) as error:
        mend = "`labkernels record --describe` writes it again"
        raise ValueError(f"{DESCRIPTION} is damaged ({error}): {mend}") from None
