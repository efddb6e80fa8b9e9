"""Parsing of YAML text to nodes with their lines, with limited nesting, and explanations of mistakes."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from edgert import limits

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def compose(text: str) -> yaml.Node | None:
    """Return the node of a text; None for an empty one.

    Raises:
        yaml.MarkedYAMLError: it is not YAML, or nested too deeply.
    """
    depth = 0
    if _is_far_too_deep(text):
        raise yaml.MarkedYAMLError(problem=TOO_DEEP)
    # LibYAML composes nodes recursively and would overflow the C stack; it parses events one by one.
    for event in _events(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > limits.YAML_LEVELS:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=event.start_mark)
    return yaml.compose(text, Loader=LOADER)


def _events(text: str) -> Iterator[Any]:
    """Yield the events of a text. Newer LibYAML reads ahead to the end of a list, with its own limit of 1,000."""
    try:
        yield from yaml.parse(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        if error.problem == "exceeded maximum nesting depth":
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=error.problem_mark) from error
        raise


def _is_far_too_deep(text: str) -> bool:
    """Return whether brackets are nested so deeply that the first event would take seconds, as LibYAML reads ahead."""
    depth = 0
    if text.count("{") + text.count("[") > _FAR:
        for found in _BRACKET.finditer(text):
            depth += 1 if found[0] in "{[" else -1
            if depth > _FAR:
                return True
    return False


TOO_DEEP = f"nested too deeply: {limits.YAML_LEVELS} levels are the most"
_FAR = 10_000
_BRACKET = re.compile(r"[][{}]")


# Explanations of frequent mistakes.

_VALUE = re.compile(r"([\w-]+):[ ]+((?:\{\w+\}|[^\s,\"'\[{])[^\s,]*)")
_FIELD = re.compile(r"\{\w+\}")
_NO_SPACE = re.compile(r"\s*(?:-\s+)?([A-Za-z_][\w-]*):([^\s/:][^\s:]*)\s*")
_SIGNS = frozenset("*&!@`%|>")


def to_yaml(data: object) -> str:
    """Return plain data as YAML, in the same order."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    if "\x85" in text:  # PyYAML writes it as a line break, which is read as a space
        return str(yaml.safe_dump(data, sort_keys=False, width=120))
    return text


def explain_mistake(text: str, error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return the mistake in a text that is not YAML, and the fix.

    For unknown mistakes, they are the parser's message and an empty text.
    """
    mark, context = error.problem_mark or error.context_mark, str(error.context)
    lines = text.splitlines()
    if mark is None or mark.line > len(lines):
        return str(error.problem), ""
    begin = min(mark.line, error.context_mark.line if error.context_mark else mark.line)
    for number in range(begin, min(mark.line + 1, len(lines))):
        what, fix = _line_mistake(lines[number])
        if what:
            return f"line {number + 1} {what}", fix
    here = lines[mark.line] if mark.line < len(lines) else ""
    if "quoted scalar" in context:
        return f"the quote that begins on line {begin + 1} is not closed", "end the text with the same quote"
    signs = [sign for sign in here[max(mark.column - 1, 0) : mark.column + 1] if sign in _SIGNS]
    if signs and ("alias" in context or "anchor" in context or "cannot start" in str(error.problem)):
        return f"line {mark.line + 1}: a value cannot begin with {signs[-1]}", "write the value in quotes"
    for number in (mark.line, mark.line - 1):
        if 0 <= number < len(lines) and (key := _NO_SPACE.fullmatch(lines[number])):
            return f"line {number + 1} has no space after the colon", f"write {key[1]}: {key[2]}"
    if indentation := _indentation_mistake(lines[: mark.line + 1]):
        return f"line {mark.line + 1} {indentation}", "give the keys of one section the same number of spaces"
    if "flow" in context:
        sign, other = ("[", "]") if "sequence" in context else ("{", "}")
        return f"the {sign} of line {begin + 1} is not closed, or a comma is missing", f"end it with {other}"
    if "another document" in str(error.problem):
        return f"line {mark.line + 1} begins a second document", "keep one pipeline in a file"
    if "mapping values" in str(error.problem):
        return f"line {mark.line + 1} has a second colon", "write a text that has a colon in quotes"
    return str(error.problem), ""


def _line_mistake(line: str) -> tuple[str, str]:
    """Return the mistake in a single line, and the fix; two empty strings without a mistake."""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "begins with a tab", "YAML is indented with spaces: two for each level"
    for key, value in _VALUE.findall(line.partition(" #")[0]):
        while value.endswith("}") and value.count("}") > value.count("{"):
            value = value[:-1]
        if _FIELD.search(value) and not _FIELD.fullmatch(value):
            return f"has a value with {{ in it, which needs quotes: {value}", f'write {key}: "{value}"'
    return "", ""


def _indentation_mistake(lines: Sequence[str]) -> str:
    """Return why the indentation of the last line fits no line before it; empty where it fits one."""
    levels, before, indent = list[int](), list[int](), 0
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            indent, before = len(line) - len(line.lstrip(" ")), levels
            levels = [*(one for one in levels if one < indent), indent]
    if not before or indent in before:
        return ""
    lower, upper = [one for one in before if one < indent], [one for one in before if one > indent]
    shown = " or ".join(map(str, [*lower[-1:], *upper[:1]]))
    return f"is {indent} space{'' if indent == 1 else 's'} in, its neighbors {shown}"
