"""A browser, which opens pages of the built site from the disk or from a strict server."""

import base64
import hashlib
import http.server
import re
import shutil
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "_site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS, THEMES = (1300, 390), ("light", "dark")


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of these is installed: {', '.join(BROWSERS)}")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser):
    """Yield a function that opens a page, and notes what goes wrong there and what it loads."""
    contexts = []

    def open_page(name, width=WIDTHS[0], theme=THEMES[0], base="", scripts=True):
        size, motion = {"width": width, "height": 900}, "reduce"
        context = browser.new_context(
            viewport=size, color_scheme=theme, reduced_motion=motion, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        page.wrong, page.loaded = [], set()
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: page.loaded.add(request.url.split("?")[0]))
        name, _, query = name.partition("?")
        page.goto(f"{base or SITE.as_uri()}/{name}?{query}", wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()


class Strict(http.server.SimpleHTTPRequestHandler):
    """Serves the site with a policy: only the site's own scripts run, and they reach nothing else.

    A kernel needs WebAssembly, and its worker is a script that the page itself has made. Scripts
    in the text of a page are named by their hashes.
    """

    POLICY = (
        "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'; script-src 'self' 'wasm-unsafe-eval'"
    )
    INLINE = re.compile(rb"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)

    def __init__(self, *args):
        super().__init__(*args, directory=SITE)

    def end_headers(self):
        path = Path(self.translate_path(self.path))
        if path.suffix == ".html":
            sums = {
                hashlib.sha256(code).digest() for code in self.INLINE.findall(path.read_bytes())
            }
            hashes = "".join(f" 'sha256-{base64.b64encode(each).decode()}'" for each in sums)
            self.send_header("Content-Security-Policy", self.POLICY + hashes)
        super().end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def strict_site():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Strict) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
