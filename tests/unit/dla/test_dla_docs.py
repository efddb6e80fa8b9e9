"""What is easily forgotten when a rule is added: its layer, its case, its row in the documentation."""

import importlib
import pkgutil
import sys
from pathlib import Path

import dla.rules
from dla import RULES, SOURCES
from dla.limit import LIMITS, PAGES
from dla.rule import Rule
from tests.helpers.command import ROOT

CASES = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py")))


def test_every_rule_belongs_to_a_layer() -> None:
    modules = [importlib.import_module(f"dla.rules.{one.name}") for one in pkgutil.iter_modules(dla.rules.__path__)]
    written = {value.name for module in modules for value in vars(module).values() if isinstance(value, Rule)}
    assert written == set(RULES), "put it into the rules of its layer, in dla/table.py or the tuple beside it"


def test_every_rule_has_a_case() -> None:
    named = {name for name in SOURCES if f'"{name}"' in CASES}
    assert set(SOURCES) - named == set(), "test what the rule refuses, by its name"


def test_every_source_has_a_name_for_the_documentation() -> None:
    sources = {*SOURCES.values(), *(limit.source for limit in LIMITS.values())}
    assert sources - set(PAGES.values()) == set(), "name the page in dla.limit.PAGES"


def test_the_documentation_holds_every_rule_limit_layer_and_rewrite() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        write_docs = importlib.import_module("write_docs")
    finally:
        sys.path.pop(0)
    page = (ROOT / "docs" / "dla.md").read_text(encoding="utf-8")
    assert page == write_docs.dla_page(), "python scripts/write_docs.py writes the tables anew"
