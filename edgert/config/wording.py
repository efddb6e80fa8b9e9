"""What a value should have been, in words for the writer of a pipeline file instead of pydantic's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgert.errors import nearest

_Context = Mapping[str, Any]
_NUMBER, _WHOLE, _SWITCH = "expected a number", "expected a whole number", "expected true or false"
_KEYS, _LIST = "expected keys, each with a value", "expected a list"
_PLAIN = {
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "bool_type": _SWITCH,
    "bool_parsing": _SWITCH,
    "string_type": "expected text; a number is text in quotes",
    "string_too_short": "expected some text",
    "dict_type": _KEYS,
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "list_type": _LIST,
    "tuple_type": _LIST,
}
_BOUNDED: Mapping[str, Callable[[_Context], str]] = {
    "greater_than": lambda context: f"expected more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"expected {context['ge']:g} or more",
    "less_than": lambda context: f"expected less than {context['lt']:g}",
    "less_than_equal": lambda context: f"expected {context['le']:g} or less",
    "too_short": lambda context: f"expected entries, at least {context['min_length']}; got {context['actual_length']}",
    "too_long": lambda context: f"expected entries, at most {context['max_length']}; got {context['actual_length']}",
}
_QUOTE, _QUOTED = "'", r"'([^']+)'"
_PATTERNS = {
    r"^[A-Za-z_][A-Za-z0-9_\-]*$": "expected a name: letters, digits, _ and -, not a digit first",
    r"^[\w.]+:[\w.]+$": "expected module:function",
}


def expected(detail: Mapping[str, Any]) -> str:
    """The message of one of pydantic's error details (``ValidationError.errors()``).

    Kinds: https://docs.pydantic.dev/latest/errors/validation_errors/. Messages of edgert's own checks stay as they are.
    """
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind == "literal_error":
        return _one_of(str(context["expected"]), detail["input"])
    if kind in _BOUNDED:
        return _BOUNDED[kind](context)
    if kind == "string_pattern_mismatch" and context["pattern"] in _PATTERNS:
        return _PATTERNS[context["pattern"]]
    return _PLAIN.get(kind) or str(detail["msg"]).removeprefix("Value error, ")


def _one_of(words: str, value: object) -> str:
    """``'warn', 'degrade' or 'stop'`` → ``expected warn, degrade or stop``, with the nearest to what was written."""
    return f"expected {words.replace(_QUOTE, '')}{nearest(str(value), re.findall(_QUOTED, words))}"
