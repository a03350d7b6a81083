"""Prints the built pages, in the book's order, into one PDF: python book/pdf.py [FILE].

Chromium prints a page at a time, with the style sheet's rules for paper. The pages are joined with
an outline of their headings; a link to another page of the book leads there within the
file, and one to a page that is not printed leads to the published site.
"""

import argparse
import io
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import yaml
from notebook_io import ROOT
from plain_roles import published
from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, TextStringObject

SITE = ROOT / "_site"
FILE = ROOT / "_build" / "labkernels.pdf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MARGIN = {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}
FOOTER = (
    '<div style="width:100%; text-align:center; font-size:8px">'
    '<span class="title"></span> · <span class="pageNumber"></span></div>'
)
# A heading that Chromium moves to the next page has its number and its words twice in the outline.
TWICE = r"^((?:[\d.]+\s)?)\1(.+)\2$"
# Opens solutions and tables, and loads the pictures that wait until a reader scrolls to them.
UNFOLD = """() => {
  const lids = "article details:is(:not(.hide), .above-output)"; // of solutions and of tables
  for (const d of document.querySelectorAll(lids)) d.open = true;
  for (const b of document.querySelectorAll(".toggle-hidden")) b.classList.remove("toggle-hidden");
  for (const i of document.images) i.loading = "eager";
  return Promise.all([...document.images].map((i) => i.decode().catch(() => {})));
}"""


def listed_pages() -> list[str]:
    """Returns the pages that the table of contents lists, without their suffix."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    names, entries = [toc["root"]], [entry for part in toc["parts"] for entry in part["chapters"]]
    for entry in entries:
        names.append(entry["file"])
        for section in entry.get("sections", ()):
            found = sorted(ROOT.glob(f"{section['glob']}.md"))
            names += [str(path.relative_to(ROOT).with_suffix("")) for path in found]
    return names


def printed(browser: Browser, name: str) -> tuple[str, bytes]:
    """Returns a page's name, and the page as a PDF."""
    page = browser.new_page(color_scheme="light", reduced_motion="reduce")
    try:
        page.goto(page_uri(name), wait_until="networkidle")
        page.evaluate(UNFOLD)
        pdf = page.pdf(
            format="A4",
            margin=MARGIN,
            scale=0.8,
            print_background=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
            outline=True,
            tagged=True,
        )
    finally:
        page.close()
    return name, pdf


def joined(pages: Iterable[tuple[str, bytes]]) -> PdfWriter:
    """Returns one PDF of the pages, with their outline and links."""
    writer, first_of = PdfWriter(), {}
    for name, pdf in pages:
        reader = PdfReader(io.BytesIO(pdf))
        first_of[page_uri(name)] = len(writer.pages)
        writer.append(reader, import_outline=False)
        outline(writer, reader, reader.outline, first_of[page_uri(name)])
        print(f"{name}: {len(reader.pages)} pages", flush=True)
    for page in writer.pages:
        for annotation in page.annotations or ():
            lead(annotation.get_object(), writer, first_of)
    return writer


def outline(writer: PdfWriter, reader: PdfReader, items: list, start: int, parent=None) -> None:
    """Adds the headings of pages that begin at `start`."""
    last = parent
    for item in items:
        if isinstance(item, list):
            outline(writer, reader, item, start, last)
        else:
            title = re.sub(TWICE, r"\1\2", item.title)
            at = start + reader.get_destination_page_number(item)
            last = writer.add_outline_item(title=title, page_number=at, parent=parent)


def page_uri(name: str) -> str:
    """Returns the address of a built page on this machine."""
    return (SITE / f"{name}.html").as_uri()


def lead(link: DictionaryObject, writer: PdfWriter, first_of: dict[str, int]) -> None:
    """Sends a link to a file of the site to its page in the PDF, or to the published site."""
    action = link.get("/A", {})
    target, at, fragment = str(action.get("/URI", "")).partition("#")
    if target in first_of:
        del link[NameObject("/A")]
        page = writer.pages[first_of[target]].indirect_reference
        link[NameObject("/Dest")] = ArrayObject([page, NameObject("/Fit")])
    elif target.startswith(f"{SITE.as_uri()}/"):
        path = target.removeprefix(f"{SITE.as_uri()}/")
        action[NameObject("/URI")] = TextStringObject(f"{published()}{path}{at}{fragment}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the built book into one PDF.")
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    file = parser.parse_args().file
    if not (SITE / "index.html").is_file():
        raise SystemExit(f"There are no pages in {SITE}: make book")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit(f"None of these is installed: {', '.join(BROWSERS)}")
    with sync_playwright() as library:
        browser = library.chromium.launch(executable_path=path, args=["--no-sandbox"])
        writer = joined(printed(browser, name) for name in listed_pages())
        browser.close()
    writer.metadata = {"/Title": "labkernels"}
    writer.compress_identical_objects()
    file.parent.mkdir(parents=True, exist_ok=True)
    writer.write(file)
    print(f"{file}: {len(writer.pages)} pages, {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
