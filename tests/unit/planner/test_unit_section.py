"""Units' predicted times: the table's rows, what takes half of the time, blocks and what is drawn of them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from edgert.placement.plan_record import EngineRow, ModelRow
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.planner.unit_section import MOST_BOXES, blocks_of, model_section, unit_rows, units_in_half
from edgert.report.page import environment

BOTH = {("gpu", "dla0"): Transition(0.1), ("dla0", "gpu"): Transition(0.1)}


def model(count: int, *, home: str = "gpu") -> ModelRow:
    """A chain; unit n takes n + 1 ms on the GPU and twice that on the DLA, where every third one is."""
    units = tuple(
        Unit(
            f"/blocks.{n // 4}/op.{n % 4}",
            (f"n{n}", f"m{n}"),
            {"gpu": Cost(n + 1.0, 5.0), "dla0": Cost(2 * n + 2.0, 1.0)},
        )
        for n in range(count)
    )
    edges = tuple(Edge(f"t{n}", n, (n + 1,), transitions=BOTH, size_bytes=1024) for n in range(count - 1))
    engine = EngineRow(tuple("dla0" if n % 3 == 2 else "gpu" for n in range(count)), 1.0)
    return ModelRow("net", Network("net", units, edges, home), (engine,), 30.0, 5.0, 0.5, {})


def section(shown: ModelRow, *, is_whole: bool = True) -> str:
    """The section's HTML."""
    found = model_section(shown, "s", "a model", is_whole=is_whole)
    return environment().get_template("model.html.j2").render(model=found)


def test_every_unit_is_a_row_with_its_time_where_it_runs() -> None:
    made = model(4)
    rows = unit_rows(made.network, made.engines[0])
    assert [(row.number, row.on, row.time_ms, row.energy_mj) for row in rows] == [
        (1, "gpu", 1.0, 5.0), (2, "gpu", 2.0, 5.0), (3, "dla0", 6.0, 1.0), (4, "gpu", 4.0, 5.0)]  # fmt: skip
    assert sum(row.part for row in rows) == pytest.approx(1) and rows[2].part == pytest.approx(6 / 13)
    assert rows[2].others_ms == {"gpu": 3.0} and rows[0].nodes == 2


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (2, 1), (4, 2), (100, 28)])
def test_few_units_take_half_of_the_time(count: int, expected: int) -> None:
    made = model(count)
    rows = unit_rows(made.network, made.engines[0])
    few = units_in_half(rows)
    slowest = sorted((row.part for row in rows), reverse=True)
    assert few <= expected and (count == 0 or sum(slowest[:few]) >= 0.5 - 1e-9 > sum(slowest[: few - 1]))


@pytest.mark.parametrize("count", [1, 5, MOST_BOXES])
def test_small_models_are_drawn_unit_by_unit(count: int) -> None:
    text = section(model(count))
    assert text.count('class="unit ') == count and 'class="block ' not in text and "<details" not in text
    assert text.count("<tr>") == count + 1 and text.count('class="stripe ') == count


def test_large_models_are_drawn_in_blocks_and_unit_by_unit_on_demand() -> None:
    text = section(model(400))
    assert 8 <= text.count('class="block ') <= MOST_BOXES and text.count('class="unit ') == 400
    assert '<details id="s-0-all" class="all">' in text and 'data-whole="s-0-all"' in text
    assert text.count("<tr>") == 401
    groups = [int(one) for one in re.findall(r'class="unit heat\d" data-name="[^"]*" data-group="(\d+)"', text)]
    assert groups == sorted(groups) and len(set(groups)) == text.count('class="block ')


def test_of_one_of_many_boards_only_blocks_and_the_slowest_units_are_shown() -> None:
    text = section(model(400), is_whole=False)
    assert text.count('class="unit ') == 0 and text.count("<tr>") == 21 and "a plan of this board alone" in text
    times = [float(one) for one in re.findall(r'class="number" data-order="([\d.e+]+)"', text)[::2]]
    assert times == sorted(times, reverse=True)


def test_slow_units_are_hotter_and_every_box_says_its_time_and_where_it_runs() -> None:
    text = section(model(30))
    heats = [int(one) for one in re.findall(r'class="unit heat(\d)"', text)]
    assert heats[0] == 0 and heats[29] == 4 and set(heats) == {0, 1, 2, 3, 4}
    assert "6 ms · dla0" in text and "no DLA can run it" not in text
    assert text.count('class="tensor crosses"') > 0


def test_what_no_dla_can_run_says_so_and_names_are_escaped() -> None:
    made = model(2)
    unit = Unit("<script>", ("<script>",), {"gpu": Cost(1.0, 1.0)})
    network = replace(made.network, units=(unit, made.network.units[1]))
    text = section(replace(made, network=network))
    assert "no DLA can run it" in text and "<script>" not in text


def sizes(names: list[str], most: int = 64) -> list[tuple[str, int]]:
    return [(one.label, one.end - one.first) for one in blocks_of(names, most)]


def test_units_of_one_block_have_names_that_begin_alike() -> None:
    names = ["/stem/conv", *(f"/layers/{n // 6}/attn/op_{n % 6}" for n in range(60)), "/head/fc"]
    assert sizes(names, 14) == [("stem", 1), *((f"layers.{n}", 6) for n in range(10)), ("head", 1)]


def test_neighbors_are_put_together_where_blocks_would_be_too_many() -> None:
    assert sizes([f"/model/block.{n // 4}/part.{n % 4}" for n in range(500)])[:2] == [
        ("block.0 … block.1", 8), ("block.2 … block.3", 8)]  # fmt: skip
    flat = sizes([f"Conv_{n}" for n in range(200)])
    assert len(flat) == 50 and flat[0] == ("Conv_0 … Conv_3", 4)


@given(st.lists(st.text(alphabet="ab/.1_", max_size=9), max_size=120), st.integers(8, 64))
def test_blocks_are_few_and_hold_every_unit_once(names: list[str], most: int) -> None:
    blocks = blocks_of(names, most)
    assert len(blocks) <= max(most, 1)
    assert [at for block in blocks for at in range(block.first, block.end)] == list(range(len(names)))
    assert all(block.end > block.first for block in blocks)
