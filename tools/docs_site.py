"""Builds the documentation site of docs/ into build/site.

python tools/docs_site.py [FOLDER]        # or: make docs
python -m http.server --directory build/site --bind 127.0.0.1

The menu is docs/index.md. A notebook becomes a page of its text and code. Links to files outside docs/ lead to the
repository. A dead link ends the build. For language models (https://llmstxt.org) each page is also served as Markdown,
``plan.html.md`` beside ``plan.html``; llms.txt lists these, and llms-full.txt has all of them in one file.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = "https://github.com/edgert/edgert/blob/main"
LINK = re.compile(r"(\]\()(\.\./[^)\s]+)(\))")
NOTEBOOK = re.compile(r"(\]\([\w-]+)\.ipynb\)")
PAGE_LINK = re.compile(r"(\]\([\w-]+)\.md([)#])")
ENTRY = re.compile(r"^- \[(?P<title>[^]]+)\]\((?P<page>[^)]+)\): (?P<about>.+)$")
READABLE = """
[data-md-color-scheme=default] { --md-accent-fg-color: #3040b0; --md-typeset-a-color: #3040b0; }
[data-md-color-scheme=slate] { --md-accent-fg-color: #9fb0ff; --md-typeset-a-color: #9fb0ff; }
.md-typeset table:not([class]) :is(th, td, code) { min-width: 0; overflow-wrap: anywhere; }
@media (min-width: 60em) {
  .md-typeset table:not([class]) td:first-child code { overflow-wrap: normal; word-break: normal; }
}
.md-typeset pre { overflow-x: auto; }
.md-typeset pre > code { overflow: visible; min-width: max-content; }
"""
"""Colors with the contrast of WCAG 2.2, 4.5 to 1, and wide blocks that keys can scroll."""
LARGEST_PAGE_BYTES = 300_000
"""Largest size of a page's HTML, without files that the browser caches for all pages."""


def sections() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield the headings of the index with their pages: title, page, about."""
    heading, found = "", list[dict[str, str]]()
    for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            if found:
                yield heading, found
            heading, found = line.removeprefix("## "), []
        elif entry := ENTRY.match(line):
            found.append(entry.groupdict())
    if found:
        yield heading, found


def page_text(path: Path) -> str:
    """Return a page as Markdown whose links to files outside docs/ lead to the repository."""

    def outside(match: re.Match[str]) -> str:
        return f"{match[1]}{SOURCE}/{match[2].removeprefix('../')}{match[3]}"

    text = notebook_text(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
    return NOTEBOOK.sub(r"\1.md)", LINK.sub(outside, text))


def plain_page(path: Path) -> str:
    """Return a page as Markdown with links to other pages as Markdown, as the site serves them."""
    return PAGE_LINK.sub(r"\1.html.md\2", page_text(path))


def plain_name(page: str) -> str:
    """Return the name of a page as Markdown on the site: ``plan.md`` → ``plan.html.md``."""
    return f"{Path(page).stem}.html.md"


def notebook_text(path: Path) -> str:
    """Return a notebook as Markdown: its text, its code as blocks of Python, and a link to the file."""
    texts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        texts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    texts.insert(1, f"This page is a notebook: [{path.name}](../docs/{path.name}).")
    return "\n\n".join(texts) + "\n"


def settings() -> str:
    """Return the settings of the site, as TOML; strings of JSON are strings of TOML."""
    groups = []
    for heading, entries in sections():
        named = [(json.dumps(one["title"]), json.dumps(one["page"].replace(".ipynb", ".md"))) for one in entries]
        pages = ", ".join(f"{{ {title} = {page} }}" for title, page in named)
        groups.append(f"{{ {json.dumps(heading)} = [{pages}] }}")
    return f"""
[project]
site_name = "edgert"
site_description = "Camera, ONNX model, output: video inference on NVIDIA Jetson and any other machine"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
extra_css = ["readable.css"]
nav = [{{ "Start" = "index.md" }}, {", ".join(groups)}]
[project.theme]
font = false
features = ["navigation.sections", "navigation.top", "search.highlight", "toc.follow"]
[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark colors"
[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light colors"
[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
toc = {{}}
pymdownx.highlight = {{ anchor_linenums = false }}
pymdownx.superfences = {{}}
"""


def plain_list() -> str:
    """Return llms.txt: a description of edgert, and a line on each page (https://llmstxt.org)."""
    lines = ["# edgert", "", "> Camera, ONNX model, output: one YAML file, on a Jetson or any other machine.", ""]
    for heading, entries in sections():
        lines += [f"## {heading}", ""]
        lines += [f"- [{entry['title']}]({plain_name(entry['page'])}): {entry['about']}" for entry in entries]
        lines.append("")
    return "\n".join(lines)


def build(target: Path) -> None:
    """Build the site into a folder, which is replaced."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(DOCS, work / "pages", ignore=shutil.ignore_patterns("*.ipynb"))
        for page in (*DOCS.glob("*.md"), *DOCS.glob("*.ipynb")):
            (work / "pages" / page.name).with_suffix(".md").write_text(page_text(page), encoding="utf-8")
        (work / "pages/readable.css").write_text(READABLE, encoding="utf-8")
        (work / "zensical.toml").write_text(settings(), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=work, check=True)
        site, names = work / "site", [entry["page"] for _, entries in sections() for entry in entries]
        pages = {plain_name(name): plain_page(DOCS / name) for name in ("index.md", *names)}
        for name, text in (pages | {"llms.txt": plain_list(), "llms-full.txt": "\n\n".join(pages.values())}).items():
            (site / name).write_text(text, encoding="utf-8")
        for page in site.glob("*.html"):
            page.write_text(page.read_text(encoding="utf-8").replace("<pre>", '<pre tabindex="0">'), encoding="utf-8")
        large = [page.name for page in site.glob("*.html") if page.stat().st_size > LARGEST_PAGE_BYTES]
        if large:
            sys.exit(f"pages over {LARGEST_PAGE_BYTES:,} bytes: {', '.join(large)}")
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(site, target)
    print(f"→ {target}/index.html")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "site")
