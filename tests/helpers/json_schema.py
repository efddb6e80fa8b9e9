"""The part of JSON Schema 2020-12 that the pipeline file's schema uses, so that tests can hold files against it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: Mapping[str, Any] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}
_KNOWN = frozenset(
    {
        "$schema",
        "$defs",
        "$ref",
        "title",
        "description",
        "default",
        "examples",
        "format",
        "type",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "properties",
        "required",
        "additionalProperties",
        "propertyNames",
        "patternProperties",
        "minProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "pattern",
    }
)


def problems(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, at: str = "$") -> list[str]:
    """What is wrong with ``value``, by its path; empty when it fits. Fails at a keyword unknown here."""
    root = schema if root is None else root
    assert not (unknown := set(schema) - _KNOWN), f"{at}: this checker does not know {unknown}"
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    return [*_choices(value, schema, root, at), *_itself(value, schema, at), *_parts(value, schema, root, at)]


def _choices(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    for keyword, allowed in (("anyOf", range(1, 1000)), ("oneOf", range(1, 2))):
        if keyword in schema:
            fits = sum(not problems(value, choice, root, at) for choice in schema[keyword])
            if fits not in allowed:
                yield f"{at} fits {fits} of {keyword}"


def _itself(value: Any, schema: Mapping[str, Any], at: str) -> Iterator[str]:
    if "type" in schema and not _TYPES[schema["type"]](value):
        yield f"{at} is no {schema['type']}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at} is not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is none of {schema['enum']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at} does not match {schema['pattern']}"
    size = len(value) if isinstance(value, (str, list, dict)) else 0
    least = schema.get("minLength", schema.get("minItems", schema.get("minProperties", 0)))
    if not least <= size <= schema.get("maxItems", size):
        yield f"{at} has {size} entries"
    if _TYPES["number"](value) and not _in_range(value, schema):
        yield f"{at} is out of range"


def _in_range(value: float, schema: Mapping[str, Any]) -> bool:
    return schema.get("minimum", value) <= value <= schema.get("maximum", value) and schema.get(
        "exclusiveMinimum", value - 1
    ) < value < schema.get("exclusiveMaximum", value + 1)


def _parts(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    if isinstance(value, list) and "items" in schema:
        for n, item in enumerate(value):
            yield from problems(item, schema["items"], root, f"{at}[{n}]")
    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    yield from (f"{at}.{key} is missing" for key in schema.get("required", ()) if key not in value)
    for key, item in value.items():
        yield from problems(key, schema.get("propertyNames", {}), root, f"{at} key {key!r}")
        found = [known[key]] if key in known else [part for form, part in patterns.items() if re.search(form, key)]
        for part in found or [schema.get("additionalProperties", True)]:
            if part is False:
                yield f"{at}.{key} is not known"
            elif part is not True:
                yield from problems(item, part, root, f"{at}.{key}")
