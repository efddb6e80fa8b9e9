"""Which layout is chosen for what was measured, how that is cached, and what is said of it."""

from __future__ import annotations

import pytest

from edgert.backend.ort import layout
from edgert.backend.ort.layout import FIRST, LAST, SEARCHED, Layouts, Measured, choose, from_json, in_words, to_json

DETECTOR = {LAST: {1: 1003.0, 8: 2989.0}, FIRST: {1: 820.0, 8: 3571.0}}
RESNET = {LAST: {1: 559.0, 8: 1054.0}, FIRST: {1: 541.0, 8: 1403.0}}


@pytest.mark.parametrize(
    "times, chosen",
    [
        ({LAST: {1: 559.0}, FIRST: {1: 541.0}}, (FIRST, FIRST)),
        ({LAST: {1: 541.0}, FIRST: {1: 559.0}}, (LAST, LAST)),
        (DETECTOR, (FIRST, LAST)),  # none loses
        (RESNET, (LAST, LAST)),  # slower by less than a second session is worth
        ({LAST: {1: 559.0, 8: 1054.0}, FIRST: {1: 525.0, 8: 1403.0}}, (FIRST, LAST)),
        ({LAST: {1: 500.0, 8: 900.0}, FIRST: {1: 600.0, 8: 1000.0}}, (LAST, LAST)),
        ({LAST: {1: 600.0, 8: 900.0}, FIRST: {1: 500.0, 8: 905.0}}, (FIRST, FIRST)),
        ({FIRST: {1: 600.0, 8: 900.0}}, (FIRST, FIRST)),
        ({**RESNET, LAST + SEARCHED: {1: 550.0, 8: 1050.0}}, (LAST, LAST)),  # not worth a longer start
        ({**RESNET, LAST + SEARCHED: {1: 400.0, 8: 800.0}}, (LAST + SEARCHED, LAST + SEARCHED)),
        ({LAST: {8: 1.0}, FIRST: {8: 1.0}}, (LAST, LAST)),
    ],
)
def test_each_size_has_the_fastest_and_one_is_taken_for_both_where_it_costs_little(
    times: layout.Times, chosen: tuple[str, str]
) -> None:
    assert choose(times) == Layouts(*chosen)


def test_no_size_is_slower_than_in_the_layout_that_it_would_have_had_alone() -> None:
    """Whatever was measured: of a grid of ratios."""
    ratios = [0.5, 0.9, 0.96, 0.98, 1.0, 1.02, 1.04, 1.1, 2.0]
    for one in ratios:
        for full in ratios:
            times = {LAST: {1: 1.0, 8: 1.0}, FIRST: {1: one, 8: full}}
            found = choose(times)
            assert times[found.few][1] <= (1 + layout.MARGIN) * min(1.0, one)
            assert times[found.full][8] <= (1 + layout.MARGIN) * min(1.0, full)


def test_the_choice_in_words() -> None:
    assert in_words(DETECTOR, choose(DETECTOR)) == (
        "channels last, 2989 us for 8 rows (3571 channels first); channels first, 820 us for 1 row (1003 channels last)"
    )
    assert in_words(RESNET, choose(RESNET)) == (
        "channels last, 1054 us for 8 rows (1403 channels first); 559 us for 1 row (541 channels first)"
    )
    assert in_words({FIRST: {4: 10.2}}, Layouts(FIRST, FIRST)) == "channels first, 10 us for 4 rows"


def test_what_was_measured_comes_back_from_the_cache() -> None:
    assert from_json(to_json(DETECTOR)) == DETECTOR
    assert from_json(to_json({FIRST: {1: 820.0}})) == {FIRST: {1: 820.0}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"channels last": 3}',
        b'{"channels last": {}}',
        b'{"channels last": {"1": "soon"}}',
        b'{"channels last": {"1": -1.0}}',
        b'{"channels last": {"1": NaN}}',
        b'{"channels last": {"1": Infinity}}',
        b'{"channels last": {"1": 1.0}, "channels first": {"1": 1.0, "8": 2.0}}',
        b'{"sideways": {"1": 1.0}}',
    ],
)
def test_anything_else_in_the_cache_is_nothing(content: bytes) -> None:
    assert from_json(content) is None


def test_layouts_without_a_graph_are_chosen_only_where_none_has_one() -> None:
    with_graph, without = Measured({1: 2.0}, ""), Measured({1: 1.0}, "it waits for the host")
    assert layout.usable({LAST: without, FIRST: with_graph}, "m.onnx") == {FIRST: {1: 2.0}}
    assert layout.usable({LAST: without, FIRST: without}, "m.onnx") == {LAST: {1: 1.0}, FIRST: {1: 1.0}}
