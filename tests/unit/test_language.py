"""Sentences have at most 30 words, and docstrings of functions begin with a verb."""

import ast
import re
from pathlib import Path

from tests.helpers.command import ROOT
from tests.helpers.sentences import of_page, of_python, of_text, too_long

NO_VERB = re.compile(
    "(a|all|an|any|as|at|by|each|every|everything|for|from|had|has|have|how|if|in|it|its|more|most|no|nobody|nothing|of|on"
    "|one|since|so|some|such|that|the|their|there|these|they|this|those|to|until|what|when|where|whether|which|who|whose"
    "|why|with)"
)
"""First words of docstrings that are no verb, or that hide who does what, as in "Have it closed"."""
ENDS_IN_S = frozenset(("address", "discuss", "dismiss", "focus", "pass", "press", "process"))
TYPE = re.compile(r"\b[Aa] \{(type\(|[\w.]*(__name__|\bop|op_type|dtype)\b)")
"""Article before the name of a type, which would read "a int"."""
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("edgert/**/DESIGN.md")))


def test_pages_and_code_have_no_long_sentence() -> None:
    pages = [f"{page.relative_to(ROOT)}: {one}" for page in PAGES for one in too_long(of_page(page.read_text("utf-8")))]
    assert not pages, "\n".join(pages)
    modules = sorted(path for folder in ("edgert", "dla") for path in (ROOT / folder).rglob("*.py"))
    code = [f"{path.relative_to(ROOT)}: {one}" for path in modules for one in too_long(of_python(path))]
    assert not code, "\n".join(code)
    assert not [path for path in modules if TYPE.search(path.read_text("utf-8"))]


def begins_with_verb(docstring: str) -> bool:
    """Return whether the first word may be a verb in the imperative."""
    first = docstring.split()[0].rstrip(".,;:")
    is_third_person = first.endswith("s") and first.lower() not in ENDS_IN_S
    return first.isalpha() and first[0].isupper() and not NO_VERB.fullmatch(first.lower()) and not is_third_person


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    wrong = []
    for path in sorted(path for folder in ("edgert", "dla") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not (text := ast.get_docstring(node)):
                continue
            is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
            if not is_property and not begins_with_verb(text):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


def test_what_is_no_verb() -> None:
    for right in ("Return it.", "Process one.", "Stop, and wait."):
        assert begins_with_verb(right)
    for wrong in ("Of all checks together.", "Whether it is so.", "Frees it.", "``plane`` at a size.", "(N, 4) boxes."):
        assert not begins_with_verb(wrong)


def test_the_front_door_has_no_sentence_of_more_than_25_words() -> None:
    pages = [ROOT / "README.md", ROOT / "docs/index.md"]
    assert [one for page in pages for one in too_long(of_page(page.read_text("utf-8")), 25)] == []


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
