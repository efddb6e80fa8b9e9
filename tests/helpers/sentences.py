"""Sentences of pages and of Python files, for the test that counts their words."""

import ast
import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc

LONGEST = 30
"""The most words of a sentence."""

_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_BLOCK = re.compile(r"^(?:[-*] |\d+\. |#|\||>|<|\s*$)")
_ENDS = re.compile(r"(?<=[.!?])[)\"'*”]*\s+")
_WORDY = frozenset({"description", "fix", "help", "why", "what", "where"})
_STRUCTURAL = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def too_long(sentences: Iterable[str], longest: int = LONGEST) -> list[str]:
    return [one for one in sentences if len([word for word in one.split() if re.search(r"\w", word)]) > longest]


def of_page(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown page; code, tables and comments are left out."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in _blocks(text):
        yield from of_text(block)


def of_python(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the sentences of docstrings, errors and help texts among all nodes of a file."""
    for node in nodes:
        if isinstance(node, _STRUCTURAL) and (docstring := ast.get_docstring(node)):
            yield from _of_docstring(docstring)
        elif isinstance(node, ast.Call):
            is_error = ast.unparse(node.func).endswith("Error")
            texts = [*node.args] if is_error else []
            texts += [word.value for word in node.keywords if is_error or word.arg in _WORDY]
            for text in filter(None, map(_literal, texts)):
                yield from of_text(text)


def of_text(text: str) -> Iterator[str]:
    """Yield the sentences of one paragraph; a piece of code, or a list of such pieces, is one word."""
    plain = _CODE.sub("CODE", text)
    plain = re.sub(r"CODE(?:(?:,| and| or|, and|, or)\s+CODE)+", "CODE", plain)
    yield from filter(None, (part.strip() for part in _ENDS.split(" ".join(plain.split()))))


def _blocks(text: str) -> Iterator[str]:
    block: list[str] = []
    for line in text.splitlines():
        if line.startswith("    ") and not block:
            continue  # code
        if _BLOCK.match(line.lstrip()):
            yield " ".join(block)
            block = []
        if line.strip() and not line.lstrip().startswith(("|", "<")):
            block.append(re.sub(r"^(?:[-*>]|\d+\.|#+) ", "", line.strip()))
    yield " ".join(block)


def _of_docstring(docstring: str) -> Iterator[str]:
    """Yield a docstring's sentences: those of each paragraph, list item and argument, but not of code."""
    block: list[str] = []
    is_code = False
    indent = 0
    for line in cleandoc(docstring).splitlines():
        depth = len(line) - len(line.lstrip())
        if is_code and (not line.strip() or depth > indent):
            continue
        is_code = False
        if not line.strip() or re.match(r"\s*(?:[-*>+|] |\w[\w ,*]*: )", line):
            yield from of_text(" ".join(block))
            block = []
        if line.strip() and not re.match(r"\s*[>|+]", line):
            block.append(line.strip())
        if line.rstrip().endswith(("::", "Examples:", "Example:")):
            is_code, indent = True, depth
    yield from of_text(" ".join(block))


def _literal(node: ast.expr) -> str:
    """Return a literal text, what is put into it as one word; empty for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
    return ""
