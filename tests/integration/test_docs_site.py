"""The documentation site: built without a dead link, readable by everybody, small, and quiet."""

import gzip
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.helpers.browser import axe, browser
from tests.helpers.http_request import serving
from tools.docs_site import ROOT, page_text, plain_list, plain_name, sections

PAGES = ("index.html", "pipeline-file.html", "python.html")
MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="extra docs")
    folder = tmp_path_factory.mktemp("site") / "site"
    began_s = time.monotonic()
    subprocess.run([sys.executable, "tools/docs_site.py", str(folder)], cwd=ROOT, check=True, timeout=120)
    assert time.monotonic() - began_s < 60
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serving(partial(SimpleHTTPRequestHandler, directory=str(site))) as url:
        yield url


def test_every_page_of_the_index_is_in_the_menu_and_in_the_plain_list() -> None:
    names = [entry["page"] for _, entries in sections() for entry in entries]
    assert len(names) > 30 and all(f"]({plain_name(name)}):" in plain_list() for name in names)


def test_every_link_for_language_models_is_a_file_of_the_site(site: Path) -> None:
    for text in (site / name for name in ("llms.txt", "llms-full.txt", "index.html.md", "count-in-zones.html.md")):
        linked = re.findall(r"\]\(([\w.-]+)(?:#[\w-]+)?\)", text.read_text(encoding="utf-8"))
        assert linked and [name for name in linked if not (site / name).is_file()] == [], text.name
        assert [name for name in linked if name.endswith(".md") and not name.endswith(".html.md")] == []


def test_links_out_of_the_docs_lead_to_the_repository() -> None:
    text = page_text(ROOT / "docs/index.md")
    assert "(https://github.com/edgert/edgert/blob/main/CONTRIBUTING.md)" in text and "](../" not in text


def test_a_notebook_is_a_page_with_its_text_its_code_and_a_link_to_the_file() -> None:
    text = page_text(ROOT / "docs/count-in-zones.ipynb")
    assert text.startswith("# Count in zones") and "```python\nimport cv2\n" in text and "(zones.md)" in text
    assert "(https://github.com/edgert/edgert/blob/main/docs/count-in-zones.ipynb)" in text
    assert "](count-in-zones.md)" in page_text(ROOT / "docs/index.md")


def test_a_page_is_small_with_all_that_it_loads(site: Path) -> None:
    """As a web server sends it: compressed."""
    for name in PAGES:
        html = (site / name).read_text(encoding="utf-8")
        loaded = set(re.findall(r'(?:href|src)="?([\w./-]+\.(?:css|js))', html))
        files = [site / name, *(site / ref for ref in loaded)]
        sent_bytes = sum(len(gzip.compress(file.read_bytes())) for file in files)
        assert len(files) > 3 and sent_bytes < MOST_BYTES, (name, sent_bytes)


@pytest.mark.parametrize("dark", [False, True])
def test_the_site_keeps_nobody_out_and_asks_nobody_else(address: str, tmp_path: Path, dark: bool) -> None:
    """On a phone and on a desk; the colors are those that the system prefers."""
    with browser(tmp_path) as page:
        for name in PAGES:
            for width_px in (390, 1440):
                page.open(f"{address}/{name}", width_px, dark=dark)
                assert page.evaluate("document.documentElement.scrollWidth") <= width_px
                if width_px > 1000:
                    keys = "[...document.querySelectorAll('td:first-child code')]"
                    whole = f"{keys}.every(k => k.textContent.includes(' ') || k.getClientRects().length === 1)"
                    assert page.evaluate(whole), name
                page.evaluate(f"{axe()};0")
                wrong = "axe.run().then(r => r.violations.map(v => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"
                assert page.evaluate(wrong) == [], (name, width_px)
                assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
                assert [one for one in page.requests if not one.startswith((address, "data:"))] == []
