"""Sentences of pages, docstrings, errors and help texts have at most 30 words."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.command import ROOT
from tests.helpers.sentences import of_page, of_python, of_text, too_long

PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("edgert/**/DESIGN.md")))


def test_pages_and_code_have_no_long_sentence() -> None:
    pages = [f"{page.relative_to(ROOT)}: {one}" for page in PAGES for one in too_long(of_page(page.read_text("utf-8")))]
    assert not pages, "\n".join(pages)
    modules = sorted(path for folder in ("edgert", "dla") for path in (ROOT / folder).rglob("*.py"))
    code = [f"{path.relative_to(ROOT)}: {one}" for path in modules for one in too_long(of_python(path))]
    assert not code, "\n".join(code)


def test_code_is_one_word_and_a_list_item_is_a_paragraph() -> None:
    assert list(of_text("Run `edgert run a.yaml --set b=c`, `d` or `e`. It ends.")) == ["Run CODE.", "It ends."]
    page = "# Title\n\nOne two\nthree.\n\n- four\n- five:\n\n```sh\nsix\n```\n\n| seven |\n\n    eight\n"
    assert list(of_page(page)) == ["Title", "One two three.", "four", "five:"]
    assert too_long([" ".join(["word"] * 31), " ".join(["word"] * 30)]) == [" ".join(["word"] * 31)]


def test_docstrings_and_errors_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Open it.\n\nArgs:\n    path: a file.\n    name: text::\n\n        code\n"""\n'
        'raise ConfigError(f"no {path}. Or so", fix="try" " again")\n'
    )
    found = ["Open it.", "Args:", "path: a file.", "name: text::", "no VALUE.", "Or so", "try again"]
    assert list(of_python(module)) == found
