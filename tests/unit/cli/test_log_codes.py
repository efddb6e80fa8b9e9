"""Codes of log lines, by which users filter: docs/metrics.md lists those that the code gives."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def given_codes() -> Iterator[str]:
    """Yield every text that the code gives as ``extra={"code": ...}``."""
    for path in (ROOT / "edgert").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if '{"code": ' in text else ():
            for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                if isinstance(key, ast.Constant) and key.value == "code":
                    texts = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
                    yield from (one.value for one in texts if isinstance(one, ast.Constant) and one.value)


def test_every_code_of_a_log_line_is_in_the_docs_once_and_has_the_form_of_a_code() -> None:
    rows = (ROOT / "docs/metrics.md").read_text(encoding="utf-8").partition("## Codes of log lines")[2]
    documented = re.findall(
        r"`([\w.]+)`", "".join(re.findall(r"^\|([^|]+)\|", rows.partition("\n## ")[0], re.MULTILINE))
    )
    assert {*documented} == {*given_codes()}
    assert [code for code, count in Counter(documented).items() if count > 1] == []
    assert [code for code in documented if not re.fullmatch(r"[a-z]+\.[a-z]+", code)] == []
