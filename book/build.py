"""Builds the book: executes the notebooks on this machine, then writes the pages to _site/.

python book/build.py [--no-execute] [--force] [--pairs]

_build/executed/NAME.ipynb    fresh copies; one is executed again when its source, labkernels, data/
                              or an installed package changed
_build/book_source/           the tree that Jupyter Book reads: book/, the executed copies in the
                              place of the committed ones, labkernels/ for literalinclude
_site/                        the pages, replaced only by a build without a warning
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import notebook_io
import yaml
from notebook_io import ROOT

BUILD = ROOT / "_build"
EXECUTED = BUILD / "executed"
STAGE = BUILD / "book_source"
SITE = ROOT / "_site"
NETWORK_TAG = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*?\bhref\s*=\s*["']?(?:https?:)?//""",
    re.IGNORECASE,
)
NETWORK_STYLE = re.compile(r"""(?:@import\s*["']|url\(\s*["']?)(?:https?:)?//""", re.IGNORECASE)


def main() -> None:
    args = parse_arguments()
    started_s = time.monotonic()
    if args.pairs:
        for name, executed in execute_notebooks(force=args.force).items():
            pair = notebook_io.write_pair(executed, name)
            print(f"wrote {pair.relative_to(ROOT)}")
        return
    if args.no_execute:
        notebooks = {path.stem: path.with_suffix(".ipynb") for path in notebook_io.sources()}
    else:
        notebooks = execute_notebooks(force=args.force)
    stage(notebooks)
    build_pages(force=args.force)
    print(f"book: {time.monotonic() - started_s:.0f} s. Open {(SITE / 'index.html').as_uri()}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Executes the notebooks and builds the book.")
    parser.add_argument("--no-execute", action="store_true", help="show the committed notebooks")
    parser.add_argument("--force", action="store_true", help="do everything, changed or not")
    parser.add_argument(
        "--pairs", action="store_true", help="write notebooks/*.ipynb from the .py, and no pages"
    )
    return parser.parse_args()


def execute_notebooks(*, force: bool) -> dict[str, Path]:
    """name -> executed copy, for every notebook; runs those whose inputs changed."""
    inputs = notebook_io.input_digest()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    executed = {}
    for source in notebook_io.sources():
        target, key_file = EXECUTED / f"{source.stem}.ipynb", EXECUTED / f"{source.stem}.key"
        key = hashlib.sha256(inputs.encode() + source.read_bytes()).hexdigest()
        if force or not target.exists() or read_key(key_file) != key:
            started_s = time.monotonic()
            nbformat.write(notebook_io.execute(source, scratch=BUILD / "jupyter"), target)
            key_file.write_text(key)
            print(f"executed {source.stem}: {time.monotonic() - started_s:.0f} s", flush=True)
        executed[source.stem] = target
    return executed


def stage(notebooks: dict[str, Path]) -> None:
    """Lays out the tree that Jupyter Book reads, in the repository's own layout."""
    shutil.rmtree(STAGE, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.py", "__pycache__", ".*")
    shutil.copytree(ROOT / "book", STAGE / "book", ignore=ignored)
    (STAGE / "notebooks").mkdir()
    for name, path in notebooks.items():
        if not path.exists():
            raise SystemExit(f"{path} is missing: run this without --no-execute")
        shutil.copyfile(path, STAGE / "notebooks" / f"{name}.ipynb")
    (STAGE / "labkernels").symlink_to(ROOT / "labkernels", target_is_directory=True)
    config_path = STAGE / "book" / "_config.yml"
    config = yaml.safe_load(config_path.read_text())
    blob = f"{config['repository']['url']}/blob/{config['repository']['branch']}/{{{{path}}}}"
    schemes = {"http": None, "https": None, "mailto": None, "repo": blob}
    config["sphinx"]["config"]["myst_url_schemes"] = schemes
    config_path.write_text(yaml.safe_dump(config, sort_keys=False))


def build_pages(*, force: bool) -> None:
    """Runs Jupyter Book on the staged tree, unless _site already shows exactly that."""
    key_file = BUILD / "site.key"
    key = site_digest()
    if not force and (SITE / "index.html").exists() and read_key(key_file) == key:
        return
    output = BUILD / "book_output"
    shutil.rmtree(output, ignore_errors=True)
    key_file.unlink(missing_ok=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", str(STAGE)]
    command += ["--config", str(STAGE / "book/_config.yml"), "--toc", str(STAGE / "book/_toc.yml")]
    command += ["--path-output", str(output), "-W", "--keep-going", "--quiet"]
    result = subprocess.run(command, cwd=STAGE, text=True, capture_output=True, check=False)
    log = result.stdout + result.stderr
    (BUILD / "book.log").write_text(log)
    if result.returncode != 0:
        raise SystemExit(f"{log}\nThe book was not built (also in {BUILD / 'book.log'}).")
    pages = output / "_build" / "html"
    if uses := network_uses(pages):
        raise SystemExit("These pages would load from the network:\n" + "\n".join(uses))
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(pages, SITE)
    key_file.write_text(key)


def site_digest() -> str:
    """A hash of the staged tree, of the sources that pages quote, and of this script."""
    digest = hashlib.sha256(notebook_io.input_digest().encode())
    scripts = [Path(__file__), Path(notebook_io.__file__)]
    for path in scripts + sorted(p for p in STAGE.rglob("*") if p.is_file()):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def network_uses(pages: Path) -> list[str]:
    """Where a built page or stylesheet would fetch something, as 'file: the tag'."""
    uses = []
    for path in sorted(pages.rglob("*")):
        pattern = {".html": NETWORK_TAG, ".css": NETWORK_STYLE}.get(path.suffix)
        if pattern is not None:
            text = path.read_text(encoding="utf-8", errors="replace")
            uses += [f"{path.relative_to(pages)}: {m.group(0)}" for m in pattern.finditer(text)]
    return uses


def read_key(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    main()
