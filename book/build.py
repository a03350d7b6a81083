"""Builds the book: executes the notebooks on this machine, then writes the pages to _site/.

python book/build.py [--force] [--nbval] [--pairs] [--to FOLDER] [--from FOLDER]

_build/executed/NAME.ipynb    fresh copies; one is executed again when its source, labkernels, data/
                              or an installed package changed
_build/book_source/           the tree that Jupyter Book reads: book/, the executed copies in the
                              place of the committed ones, labkernels/ for literalinclude, the
                              changelog, and in _static/lab/ the kernels that pages run, as
                              WebAssembly
_site/                        the pages, replaced only by a build without a warning

One build runs at a time. Whatever was executed or built is used again only if it is, byte for byte,
what that run wrote.
"""

import argparse
import contextlib
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chapter_frame
import guesses
import lighten
import mend
import nbformat
import notebook_io
import page_cells
import page_evidence
import page_figures
import page_math
import page_questions
import page_sections
import page_tables
import page_widgets
import plain_roles
import search_sentences
import search_words
import yaml
from filelock import FileLock, Timeout
from notebook_io import ROOT

BUILD = ROOT / "_build"
EXECUTED = BUILD / "executed"
STAGE = BUILD / "book_source"
SITE = ROOT / "_site"
NOT_FOUND = ROOT / "book" / "not_found.html"
CHAPTERS_AT_ONCE = 2
NETWORK_TAG = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*?\bhref\s*=\s*["']?(?:https?:)?//""",
    re.IGNORECASE,
)
NETWORK_STYLE = re.compile(r"""(?:@import\s*["']|url\(\s*["']?)(?:https?:)?//""", re.IGNORECASE)


def main() -> None:
    args = parse_arguments()
    try:
        with one_build():
            build(args)
    except OSError as error:
        raise SystemExit(f"The book was not built: {error}") from None


@contextlib.contextmanager
def one_build() -> Iterator[None]:
    """Waits, and says so, until no other build uses the folders."""
    BUILD.mkdir(parents=True, exist_ok=True)
    lock = FileLock(BUILD / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print("Another build is under way; waiting for its end.", flush=True)
        held = lock.acquire()
    with held:
        yield


def build(args: argparse.Namespace) -> None:
    started_s = time.monotonic()
    if args.to:
        args.to.mkdir(parents=True, exist_ok=True)
        execute_notebooks(force=args.force, copies=args.to)
        return
    if args.pairs:
        for name, executed in execute_notebooks(force=args.force).items():
            pair = notebook_io.write_pair(executed, name)
            print(f"wrote {pair.relative_to(ROOT)}")
        return
    if args.nbval:
        execute_notebooks(force=args.force)
        replay()
        return
    if args.edition:
        notebooks = notebook_io.edition(args.edition)
    else:
        notebooks = execute_notebooks(force=args.force)
    stage(notebooks)
    print(page_widgets.write(STAGE / "book" / "_static" / "lab"), flush=True)
    build_pages(notebooks, force=args.force)
    print(f"book: {time.monotonic() - started_s:.0f} s. Open {(SITE / 'index.html').as_uri()}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Executes the notebooks and builds the book.")
    parser.add_argument("--force", action="store_true", help="do everything, changed or not")
    parser.add_argument(
        "--nbval", action="store_true", help="replay notebooks/*.ipynb in nbval, and no pages"
    )
    parser.add_argument(
        "--pairs", action="store_true", help="write notebooks/*.ipynb from the .py, and no pages"
    )
    parser.add_argument(
        "--to", type=Path, help="only execute, and put copies there: an edition of this machine"
    )
    parser.add_argument(
        "--from", dest="edition", type=Path, help="show an edition that was executed elsewhere"
    )
    return parser.parse_args()


def execute_notebooks(*, force: bool, copies: Path | None = None) -> dict[str, Path]:
    """name -> executed copy, for every notebook; runs those whose inputs changed.

    copies: a folder that gets each copy as soon as its chapter has run, so that a run that is
    stopped leaves what it has.
    """
    inputs = notebook_io.input_digest()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    notebook_io.use_this_interpreter(BUILD / "jupyter")
    # On a new machine the first import lists the fonts and says so, which no chapter should show.
    importlib.import_module("matplotlib.font_manager")
    # On a GPU machine chapters show times, and must not disturb each other. Elsewhere a chapter
    # has one core, since a second thread of OpenBLAS would spin while it waits for small products.
    gpu = shutil.which("nvidia-smi") is not None
    if not gpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(1 if gpu else CHAPTERS_AT_ONCE) as pool:
        runs = {
            source.stem: pool.submit(execute_notebook, source, inputs, force=force, copies=copies)
            for source in notebook_io.sources()
        }
        try:
            return {name: run.result() for name, run in runs.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def execute_notebook(source: Path, inputs: str, *, force: bool, copies: Path | None = None) -> Path:
    """Returns the executed copy of a notebook, which is run if its inputs changed."""
    target, key_file = EXECUTED / f"{source.stem}.ipynb", EXECUTED / f"{source.stem}.key"
    key = hashlib.sha256(inputs.encode() + source.read_bytes()).hexdigest()
    if force or read_key(key_file) != f"{key} {tree_digest(target)}":
        started_s = time.monotonic()
        notebook = notebook_io.execute(source)
        key_file.unlink(missing_ok=True)
        nbformat.write(notebook, target)
        key_file.write_text(f"{key} {tree_digest(target)}")
        print(f"executed {source.stem}: {time.monotonic() - started_s:.0f} s", flush=True)
    if copies is not None:
        print(f"wrote {shutil.copyfile(target, copies / target.name)}", flush=True)
    return target


def replay() -> None:
    """Lets nbval compare each cell of the committed notebooks with the same cell as it ran here.

    Raises: SystemExit if an output differs; pytest has printed which.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "nbval", "-p", "tests.replayed"]
    command += ["--executed", str(EXECUTED)]
    command += ["--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg")]
    command += map(str, (source.with_suffix(".ipynb") for source in notebook_io.sources()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "book"), str(ROOT)])}
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
        raise SystemExit("A chapter gives other outputs than its committed notebook.")


def stage(notebooks: dict[str, Path]) -> None:
    """Lays out the tree that Jupyter Book reads, in the repository's own layout."""
    remove(STAGE)
    ignored = shutil.ignore_patterns("*.py", "__pycache__", ".*", "versions", "widgets")
    shutil.copytree(ROOT / "book", STAGE / "book", ignore=ignored)
    (STAGE / "notebooks").mkdir()
    chapters_by_name = {chapter.file: chapter for chapter in chapter_frame.chapters()}
    evidence = dict.fromkeys(chapters_by_name, "")
    for name, path in notebooks.items():
        notebook = nbformat.read(path, 4)
        if name in chapters_by_name:
            notebook = chapter_frame.framed(notebook, name)
            evidence[name] = page_evidence.take(notebook, name)
            if chapters_by_name[name].case:
                page_cells.with_case(notebook, chapters_by_name[name])
            page_cells.with_widgets(notebook, chapters_by_name[name])
        page_cells.without_stubs(notebook)
        page_questions.ask(notebook)
        nbformat.write(notebook, STAGE / "notebooks" / f"{name}.ipynb")
    page = STAGE / "book" / "evidence.md"
    sections = "\n\n".join(filter(None, evidence.values()))
    page.write_text(page.read_text().replace(page_evidence.PLACE, sections))
    place_questions()
    (STAGE / "labkernels").symlink_to(ROOT / "labkernels", target_is_directory=True)
    (STAGE / "CHANGELOG.md").symlink_to(ROOT / "CHANGELOG.md")
    config_path = STAGE / "book" / "_config.yml"
    config = yaml.safe_load(config_path.read_text())
    blob = f"{config['repository']['url']}/blob/{config['repository']['branch']}/{{{{path}}}}"
    schemes = {"http": None, "https": None, "mailto": None, "repo": blob}
    settings = config["sphinx"]["config"]
    settings["myst_url_schemes"] = schemes
    settings["html_baseurl"] = settings["ogp_site_url"] = plain_roles.published(config_path)
    config_path.write_text(yaml.safe_dump(config, sort_keys=False))


def place_questions() -> None:
    """Puts guesses, questions and moving pictures where pages name them."""
    for page in (STAGE / "book").glob("*.md"):
        text = page_cells.with_motion(page.read_text(), STAGE / "notebooks")
        text = page_questions.placed(text, STAGE / "notebooks")
        page.write_text(guesses.placed(text, page.stem))
    for page in (STAGE / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(page, 4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = guesses.placed(cell.source, page.stem)
        nbformat.write(notebook, page)


def build_pages(notebooks: dict[str, Path], *, force: bool) -> None:
    """Runs Jupyter Book on the staged tree, unless _site already shows exactly that."""
    key_file = BUILD / "site.key"
    key = site_digest()
    if not force and read_key(key_file) == f"{key} {tree_digest(SITE)}":
        return
    output = BUILD / "book_output"
    remove(output)
    key_file.unlink(missing_ok=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", str(STAGE)]
    command += ["--config", str(STAGE / "book/_config.yml"), "--toc", str(STAGE / "book/_toc.yml")]
    command += ["--path-output", str(output), "-W", "--keep-going", "--quiet"]
    # The API reference shows this checkout, by an extension that lies beside this script.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "book"), str(ROOT)])}
    result = subprocess.run(
        command, cwd=STAGE, env=environment, text=True, capture_output=True, check=False
    )
    log = result.stdout + result.stderr
    (BUILD / "book.log").write_text(log)
    if result.returncode != 0:
        raise SystemExit(f"{log}\nThe book was not built (also in {BUILD / 'book.log'}).")
    pages = output / "_build" / "html"
    if uses := network_uses(pages):
        raise SystemExit("These pages would load from the network:\n" + "\n".join(uses))
    if missing := [name for name in listed_pages() if not (pages / name).is_file()]:
        raise SystemExit(f"The book was not built: these pages are missing: {', '.join(missing)}")
    (pages / "sitemap.xml").write_text(sitemap())
    (pages / "404.html").write_text(not_found())
    page_figures.add_to(pages, STAGE / "notebooks")
    page_tables.arrange(pages)
    page_sections.fold(pages)
    search_sentences.add_to(pages)
    print(page_math.draw(pages), flush=True)
    mend.mend(pages)
    search_words.add_to(pages)
    place_downloads(pages, notebooks)
    try:
        print(lighten.lighten(pages), flush=True)
    except ValueError as error:
        raise SystemExit(f"The book was not built: {error}") from None
    put_in_place(pages)
    key_file.write_text(f"{key} {tree_digest(SITE)}")


def place_downloads(pages: Path, notebooks: dict[str, Path]) -> None:
    """Makes each page offer its notebook in plain Markdown, which JupyterLab shows."""
    for page in (pages / "_sources" / "notebooks").glob("*.ipynb"):
        nbformat.write(notebook_io.pair(notebooks[page.stem], page.stem), page)


def listed_pages() -> list[str]:
    """Returns the files of the pages in the staged table of contents, and of the first page."""
    names = ["index.html"]
    entries = [yaml.safe_load((STAGE / "book" / "_toc.yml").read_text())]
    for entry in entries:  # to which the loop appends
        names += [f"{entry[key]}.html" for key in ("root", "file") if key in entry]
        found = sorted(STAGE.glob(entry["glob"])) if "glob" in entry else []
        names += [f"{path.relative_to(STAGE).with_suffix('')}.html" for path in found]
        for key in ("parts", "chapters", "sections"):
            entries += entry.get(key, [])
    return names


def sitemap() -> str:
    """Returns the addresses of the published pages, for search engines."""
    config = yaml.safe_load((STAGE / "book" / "_config.yml").read_text())
    base = config["sphinx"]["config"]["html_baseurl"]
    addresses = "".join(f"<url><loc>{base}{name}</loc></url>\n" for name in listed_pages())
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'{head}\n<urlset xmlns="{space}">\n{addresses}</urlset>\n'


def not_found() -> str:
    """Returns the page that a host shows in the place of one that it does not have."""
    return NOT_FOUND.read_text(encoding="utf-8").replace("PUBLISHED", plain_roles.published())


def put_in_place(pages: Path) -> None:
    """Makes the pages _site; the old pages are removed only once the new ones are in place."""
    old = BUILD / "old_site"
    remove(old)
    if SITE.exists():
        SITE.replace(old)
    try:
        pages.replace(SITE)
    except OSError:
        if old.exists():
            old.replace(SITE)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove(folder: Path) -> None:
    """Removes a folder, or ends the build."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise SystemExit(f"The book was not built: {folder} cannot be removed.")


def tree_digest(path: Path) -> str | None:
    """Returns a hash of a file, or of a folder's files; None if neither exists."""
    if not path.exists():
        return None
    digest = hashlib.sha256()
    for file in sorted(p for p in [path, *path.rglob("*")] if p.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(path)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def site_digest() -> str:
    """Returns a hash of the staged tree, of the sources that pages quote, and of these scripts."""
    digest = hashlib.sha256(notebook_io.input_digest().encode())
    scripts = sorted((ROOT / "book").rglob("*.py"))
    for path in scripts + sorted(p for p in STAGE.rglob("*") if p.is_file()):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def network_uses(pages: Path) -> list[str]:
    """Returns where a built page or stylesheet would use the network, as 'file: the tag'."""
    uses = []
    for path in sorted(pages.rglob("*")):
        pattern = {".html": NETWORK_TAG, ".css": NETWORK_STYLE}.get(path.suffix)
        if pattern is not None:
            text = path.read_text(encoding="utf-8", errors="replace")
            uses += [f"{path.relative_to(pages)}: {m.group(0)}" for m in pattern.finditer(text)]
    return uses


def read_key(path: Path) -> str | None:
    """Returns the text of a key file; None if there is no file, or its bytes are no text."""
    try:
        return path.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


if __name__ == "__main__":
    main()
