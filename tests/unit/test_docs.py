"""What the pages tell people to type and write is what edgert understands: commands, Python, YAML, and links."""

import ast
import importlib
import inspect
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from edgert.cli import app
from edgert.config.pipeline_file import load_pipeline
from tests.helpers.brokers import certificate
from tests.helpers.command import ROOT
from tests.helpers.documents import FENCE, PAGES, Piece, blocks, commands, fenced, shell_lines, words
from tests.helpers.each import each
from tests.helpers.pipeline_text import schema_validator
from tools.docs_site import notebook_text

GROUP: Any = typer.main.get_command(app)
USAGE: Any = typer.BadParameter.__base__  # Click's UsageError, whichever Click this Typer has
OURS = ("edgert", "dla")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def misread(command: Piece) -> str:
    """Why edgert does not understand a command; empty where it does. Nothing is run; files need not be there."""
    _, verb, *arguments = shlex.split(command.text)
    if verb.startswith("-"):
        return ""
    if verb not in GROUP.commands:
        return f"there is no verb {verb!r}"
    try:
        GROUP.commands[verb].make_context(verb, arguments)
    except USAGE as error:
        is_short = type(error).__name__ == "MissingParameter" and not command.whole
        why = str(error.format_message())
        return "" if is_short or why.endswith("does not exist.") else why
    return ""


def test_every_command_is_understood() -> None:
    found = commands()
    assert len(found) > 80 and {one.place.rpartition(":")[0] for one in found} > {"README.md", "docs/cli.md"}
    assert {str(one): (one.text, why) for one in found if (why := misread(one))} == {}


def test_every_option_is_in_an_example() -> None:
    used: dict[str, set[str]] = {}
    for one in commands():
        _, verb, *words = shlex.split(one.text)
        used.setdefault(verb, set()).update(word.partition("=")[0] for word in words)
    missing = []
    for verb, command in GROUP.commands.items():
        for option in () if command.hidden else command.params:
            names = {name for name in (*option.opts, *option.secondary_opts) if name.startswith("-")}
            if names and not option.hidden and "--debug" not in names and not names & used.get(verb, set()):
                missing.append(f"edgert {verb} {max(names)}")
    assert missing == [], "write an example into the verb's docstring, then scripts/write_docs.py"


@pytest.mark.parametrize(
    ("text", "whole", "why"),
    [
        ("edgert biuld pipeline.yaml", True, "no verb 'biuld'"),
        ("edgert build pipeline.yaml --bord host", True, "--bord"),
        ("edgert export dock.edgert", True, "Missing"),
        ("edgert export dock.edgert", False, ""),
        ("edgert simulate pipeline.yaml --duration long", True, "valid number"),
    ],
)
def test_what_is_wrong_would_be_found(text: str, whole: bool, why: str) -> None:
    errors = misread(Piece("here:1", text, whole))
    assert why in errors and bool(errors) == bool(why)


def resolve(node: ast.expr, known: dict[str, Any]) -> Any:
    """What a dotted name of ours stands for; None for anything else. Raises AttributeError where there is none."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    owner = resolve(node.value, known) if isinstance(node, ast.Attribute) else None
    return getattr(owner, node.attr) if owner is not None and isinstance(node, ast.Attribute) else None


def imported(tree: ast.Module) -> dict[str, Any]:
    """Names that a piece of Python takes from edgert."""
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {one.name: importlib.import_module(one.name) for one in node.names if one.name in OURS}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            known |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    return known


def wrong_calls(tree: ast.Module, known: dict[str, Any]) -> Iterator[str]:
    """Arguments that what is called does not take."""
    for node in ast.walk(tree):
        called = resolve(node.func, known) if isinstance(node, ast.Call) else None
        if called is not None and isinstance(node, ast.Call):
            keywords = {one.arg: None for one in node.keywords if one.arg}
            try:
                inspect.signature(called).bind(*node.args, **keywords)
            except TypeError as error:
                yield f"{ast.unparse(node.func)}: {error}"


@pytest.mark.parametrize("piece", blocks("python"), ids=str)
def test_every_name_in_python_exists_and_takes_what_it_is_given(piece: Piece) -> None:
    tree = ast.parse(piece.text)
    known = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolve(node, known)
    assert list(wrong_calls(tree, known)) == []


FRAME: dict[str, Any] = {
    "camera": {"source": "rtsp://10.0.0.7/stream"},
    "find": {"infer": "net", "from": "camera"},
    "track": {"track": "bytetrack", "from": "find"},
    "areas": {"stage": "zones", "from": "track", "zones": {"yard": [[0, 0], [1, 0], [1, 1]]}},
    "alarm": {"stage": "events", "from": "areas", "rules": {"any": {"zone": "yard"}}},
    "paint": {"draw": ["boxes"], "from": "alarm"},
}
"""Stages that a fragment of a pipeline file may refer to without writing them."""


def framed(piece: Piece) -> dict[str, Any]:
    """Return a YAML block as a complete pipeline file: what it refers to and leaves out is added."""
    written = yaml.safe_load(piece.text)
    file = written if written.keys() <= schema_validator().schema["properties"].keys() else {"stages": written}
    stages, models = file.setdefault("stages", {}), file.setdefault("models", {})
    if not stages:
        stages |= {"camera": FRAME["camera"], "find": {"infer": next(iter(models), "net"), "from": "camera"}}
    while missing := listened(stages) - stages.keys():
        stages |= {name: FRAME.get(name, FRAME["camera"]) for name in missing}
    for stage in stages.values():
        name = stage.get("infer")
        if name is not None and name not in models:
            models[name] = {"onnx": "net.onnx", "task": {"detect": "yolox"}}
    return file


def listened(stages: dict[str, Any]) -> set[str]:
    """Return the names of the stages that others listen to."""
    inputs = [stage["from"] for stage in stages.values() if "from" in stage]
    return {name for one in inputs for name in ([one] if isinstance(one, str) else one)}


@pytest.mark.parametrize("piece", blocks("yaml"), ids=str)
def test_every_yaml_is_read(piece: Piece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reader of pipeline files, as part of a complete one; editors check it by the schema."""
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"\$\{(\w+)\}", piece.text):
        monkeypatch.setenv(name, "0123456789abcdef")
    shutil.copytree(ROOT / "pipelines", tmp_path / "pipelines", ignore=shutil.ignore_patterns("*.onnx"))
    shutil.copy(ROOT / "pipelines" / "my_operator.py", tmp_path)
    if "page.pem" in piece.text:
        for made, name in zip(certificate(tmp_path), ("page.pem", "page.key"), strict=True):
            made.rename(tmp_path / name)
    file = framed(piece)
    schema_validator().validate(file)
    config = load_pipeline(file).config
    assert config.stages.keys() == file["stages"].keys() and config.models.keys() == file["models"].keys()


_KNOWN_TEXT = """
ansible-playbook apt colcon cp curl dask docker du echo export fallocate ffplay git gst-launch-1.0 install
journalctl mkdir openssl pip python python3 ros2 sed sha256sum source ssh ssh-keygen systemctl trtexec
useradd
"""
KNOWN = set(_KNOWN_TEXT.split())
"""Programs of others that pages call."""


def unknown_program(command: str) -> str:
    """Return why a line of a shell block cannot work: a file, a target or a program that is not there."""
    text = re.sub(r"^(?:\w+=\S+\s+|sudo\s+)*", "", command)
    program, *rest = shlex.split(text)
    if program == "make":
        return "" if f"\n{rest[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8") else f"no target {rest[0]}"
    path = rest[0] if program == "python" and rest[0] != "-m" else program
    if "/" in path and not path.startswith(("/", "~")):
        return "" if (ROOT / path).is_file() else f"no file {path}"
    return "" if program in {*KNOWN, "edgert"} else f"no program {program}"


def test_every_line_of_a_shell_block_names_what_there_is() -> None:
    found = shell_lines()
    assert len(found) > 120
    assert {str(one): why for one in found if (why := unknown_program(one.text))} == {}


@pytest.mark.parametrize("piece", blocks("sh", "bash"), ids=str)
def test_every_shell_block_is_read_by_a_shell(piece: Piece) -> None:
    done = subprocess.run(["bash", "-n", "-c", piece.text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("piece", blocks("json"), ids=str)
def test_every_json_is_read(piece: Piece) -> None:
    lines = piece.text.strip().splitlines()
    texts = lines if all(line.startswith("{") and line.endswith("}") for line in lines) else [piece.text]
    assert all(isinstance(json.loads(text), dict) for text in texts)


TESTED = frozenset({"sh", "bash", "python", "yaml", "json"})
UNTESTED = {
    "text": "what programs print",
    "c": "a struct that edgert writes",
    "ini": "a unit of systemd",
    "toml": "a package",
}


def test_every_block_says_its_language_and_is_tested() -> None:
    assert {str(piece): language for language, piece in fenced() if language not in TESTED | UNTESTED.keys()} == {}
    asked = re.compile(r"^(?:\$ )?(?:edgert|pip|python) ", re.MULTILINE)
    assert [str(piece) for piece in blocks("text") if asked.search(piece.text)] == []


@each("page", PAGES)
def test_no_block_is_indented(page: Path) -> None:
    """A block without a fence has no language, so that no test reads it."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"\n\n(?: {4,}.*\n)+", text) == []


@each("page", PAGES)
def test_every_test_and_bench_that_a_page_cites_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"\btests/[\w/.-]*\w", text)
    modules = [f"{name.replace('.', '/')}.py" for name in re.findall(r"-m (tests\.[\w.]+)", text)]
    assert [path for path in (*files, *modules) if not (ROOT / path).exists()] == []


def anchors(text: str) -> set[str]:
    """Where links to headings lead, as Git forges make them."""
    titles = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", PAGES)
def test_every_link_leads_somewhere(page: Any) -> None:
    for path, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{path}#{anchor}"


MOST_WORDS, MOST_WORDS_OF_A_PAGE = 60_000, 600
LOOKED_UP = frozenset(
    {
        *("architecture.md", "benchmarks.md", "boards.md", "cli.md", "costs.md", "dla.md", "extending.md", "index.md"),
        *("metrics.md", "models.md", "pipeline-file.md", "python.md"),
    }
)
"""Pages in which people look something up; the others are read."""


def test_the_pages_can_be_read() -> None:
    """All of them as ``wc -w`` counts, which takes the bars of tables for words; a page by its words alone."""
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    texts = {page.name: notebook_text(page) if page.suffix == ".ipynb" else page.read_text("utf-8") for page in pages}
    assert sum(len(text.split()) for text in texts.values()) <= MOST_WORDS
    long = {name: words(text) for name, text in texts.items() if words(text) > MOST_WORDS_OF_A_PAGE}
    assert {name: count for name, count in long.items() if name not in LOOKED_UP} == {}
    assert {*long} == LOOKED_UP, "leave out those that are short"


def test_every_code_of_a_log_line_is_documented_once() -> None:
    given = set[str]()
    for path in (ROOT / "edgert").rglob("*.py"):
        for found in re.findall(r'{"code": ("[^}]+)}', path.read_text("utf-8")):
            given |= {*re.findall(r'"([^"]+)"', found.partition(" if ")[0] + found.partition(" else ")[2])}
    page = (ROOT / "docs/metrics.md").read_text("utf-8").partition("| the line says |")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`([a-z]+\.[a-z]+)`", page)) == sorted(given)


def test_the_glossary_is_in_order_and_its_words_are_used() -> None:
    terms = re.findall(r"^- \*\*(.+?)\*\*: .+\.$", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(terms) > 45 and terms == sorted(terms, key=str.casefold)
    others = "".join(page.read_text("utf-8") for page in PAGES if page.name != "glossary.md").casefold()
    assert [term for term in terms for word in term.casefold().split(", ") if word not in others] == []


@pytest.mark.parametrize("drawing", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_shown_and_has_a_title_and_dark_colors(drawing: Path) -> None:
    text = drawing.read_text(encoding="utf-8")
    assert any(f"]({drawing.name})" in page.read_text("utf-8") or drawing.name in README for page in PAGES)
    assert drawing.name in README or {"<title", "prefers-color-scheme"} <= set(
        re.findall("<title|prefers-color-scheme", text)
    )


def test_every_page_is_in_the_index_once() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\): .+\.$", index, flags=re.MULTILINE)
    pages = {path.name for path in (*docs.glob("*.md"), *docs.glob("*.ipynb"))}
    assert sorted(listed) == sorted(pages - {"index.md"})


def test_nothing_tells_to_get_edgert_from_a_package_index() -> None:
    wanted = re.compile(r"pip install (?:-\S+ )*['\"]?edgert(?:\[|==|\b(?!-))")
    texts = [*PAGES, *(path for path in ROOT.glob("docker/*") if path.is_file()), *ROOT.glob("edgert/**/*.py")]
    assert [path for path in texts if wanted.search(path.read_text(encoding="utf-8"))] == []
