"""Overlays of pipeline files: what differs, merged with the file, is what was wanted."""

from __future__ import annotations

import random
from typing import Any, get_args

from edgert.config.fields import Section
from edgert.config.file_overlay import differences, keys_of, merged, text_of
from edgert.config.pipeline_file import json_schema


def data_of(pick: random.Random, depth: int = 3) -> dict[str, Any]:
    def value() -> Any:
        return pick.choice([1, True, 0.5, "x", [1, 2], [], data_of(pick, depth - 1) if depth else "y"])

    return {key: value() for key in pick.sample("abcdef", pick.randint(0, 4))}


def test_the_differences_merged_with_the_file_are_what_was_wanted() -> None:
    pick = random.Random(1)
    for _ in range(3000):
        before, wanted = data_of(pick), data_of(pick)
        overlay = differences(before, wanted)
        assert merged(before, overlay) == wanted
        assert not differences(wanted, wanted) and (overlay or before == wanted)
        keys = keys_of(overlay, before)
        assert len(keys) == len(set(keys)) and (not keys) == (not overlay)


def test_a_key_without_a_value_is_taken_away_and_secrets_stay_as_written() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}
    assert keys_of({"a": {"b": None, "d": {"e": 1}}}, {"a": {"b": 1}}) == [("a", "b"), ("a", "d")]
    assert differences({"a": True}, {"a": 1}) == {"a": 1}
    assert text_of({"a": {"b": ["s3cret"]}}, {("a", "b", 0): "${B}"}) == "a:\n  b:\n  - ${B}\n"


def test_a_key_that_may_be_null_is_null_without_it() -> None:
    """So that a null in an overlay may take the key away."""
    json_schema()  # which imports the sections of all kinds
    todo, count = [Section], 0
    while todo:
        section = todo.pop()
        todo += section.__subclasses__()
        for name, field in section.model_fields.items():
            if type(None) in get_args(field.annotation):
                count += 1
                assert field.default is None, f"{section.__name__}.{name}"
    assert count > 50
