"""The PDF of the book has an outline, and its links lead within it or to the published site."""

import io

import pytest

pypdf = pytest.importorskip("pypdf")
pytest.importorskip("playwright.sync_api")

import pdf  # noqa: E402  (needs both)
import plain_roles  # noqa: E402
from pypdf.annotations import Link  # noqa: E402

BOX = (0, 0, 10, 10)


def page(*targets, sheets=1, headings=()):
    """Return a PDF as Chromium prints a page with links and headings."""
    writer = pypdf.PdfWriter()
    for _ in range(sheets):
        writer.add_blank_page(100, 100)
    for target in targets:
        writer.add_annotation(0, Link(rect=BOX, url=target))
    for heading in headings:
        writer.add_outline_item(title=heading, page_number=sheets - 1)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


@pytest.fixture
def book():
    links = (f"{pdf.page_uri('b/two')}#part", f"{pdf.page_uri('genindex')}#x", "https://a.example/")
    first = page(*links, sheets=2, headings=["One"])
    file = io.BytesIO()
    pdf.joined([("one", first), ("b/two", page(headings=["2.1. 2.1. TwoTwo"]))]).write(file)
    return pypdf.PdfReader(file)


def test_pages_are_in_order_below_their_headings(book):
    found = [(item.title, book.get_destination_page_number(item)) for item in book.outline]
    assert found == [("One", 1), ("2.1. Two", 2)]


def test_links_lead_within_the_book_or_to_the_published_site(book):
    within, beyond, elsewhere = (found.get_object() for found in book.pages[0].annotations)
    assert within["/Dest"][0] == book.pages[2].indirect_reference
    assert beyond["/A"]["/URI"] == f"{plain_roles.published()}genindex.html#x"
    assert elsewhere["/A"]["/URI"] == "https://a.example/"


def test_every_page_that_the_book_lists_is_printed():
    names = pdf.listed_pages()
    assert names[0] == "book/intro"
    assert {"notebooks/two_roads", "book/decisions/0005-log2-units"} <= set(names)
    assert len(names) == len(set(names))
