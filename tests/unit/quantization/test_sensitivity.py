import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from edgert.errors import ArtifactError, CalibrationError
from edgert.quantization.recovery import scan
from tests.unit.quantization.test_mixed import Measured

COSTS = {"stem": 0.5, "body": 0.0, "neck": 0.1, "head": 2.0}


def rounding_error(costs: dict[str, float] = COSTS, stop_at: int | None = None) -> Measured:
    """The sum of what each unit costs that is not kept."""
    return Measured(lambda kept: sum(cost for name, cost in costs.items() if name not in kept), stop_at)


def but(name: str) -> frozenset[str]:
    """All units but one."""
    return frozenset(COSTS) - {name}


def test_each_unit_is_rounded_alone_and_ranked_by_what_that_costs() -> None:
    error = rounding_error()
    result = scan(list(COSTS), error)
    assert list(result.items()) == [("head", 2.0), ("stem", 0.5), ("neck", 0.1), ("body", 0.0)]
    assert error.asked == [*map(but, COSTS)]


def test_what_is_left_of_one_unit_is_the_whole() -> None:
    error = rounding_error({"only": 3.0})
    assert scan(["only"], error) == {"only": 3.0}
    assert error.asked == [frozenset()]


def test_equal_costs_keep_the_order_given_and_doubles_count_once() -> None:
    result = scan(["c", "a", "b", "a"], rounding_error(dict.fromkeys("abc", 1.0)))
    assert list(result) == ["c", "a", "b"]


def test_when_time_is_over_the_rest_stands_between_what_costs_and_what_does_not() -> None:
    error = rounding_error()
    result = scan(["body", "stem", "neck", "head"], error, budget_s=15, clock=error.clock)
    assert len(error.asked) == 2  # at 0 and 10 s; the next would begin at 20 s
    assert list(result.items()) == [("stem", 0.5), ("neck", None), ("head", None), ("body", 0.0)]


def test_an_interrupted_scan_goes_on_where_it_was(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "scan.json"
    with pytest.raises(KeyboardInterrupt):
        scan(list(COSTS), rounding_error(stop_at=2), state=state, key="k")
    assert [path.name for path in state.parent.iterdir()] == ["scan.json"]
    again = rounding_error()
    result = scan(list(COSTS), again, state=state, key="k")
    assert again.asked == [but("neck"), but("head")]
    assert result == scan(list(COSTS), rounding_error())


def test_known_values_cost_no_time(tmp_path: Path) -> None:
    scan(list(COSTS), rounding_error(), state=tmp_path / "s", key="k")
    error = rounding_error()
    result = scan(list(COSTS), error, state=tmp_path / "s", key="k", budget_s=0, clock=error.clock)
    assert None not in result.values()
    assert error.asked == []


@pytest.mark.parametrize("change", [{"key": "other"}, {"version": 0}])
def test_a_state_of_something_else_is_started_over_and_said_so(
    tmp_path: Path, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "scan.json"
    scan(list(COSTS), rounding_error(), state=state, key="k")
    state.write_text(json.dumps({**json.loads(state.read_text()), **change}))
    error = rounding_error()
    scan(list(COSTS), error, state=state, key="k")
    assert len(error.asked) == 4
    assert "started over" in caplog.text
    again = rounding_error()
    scan(list(COSTS), again, state=state, key="k")
    assert again.asked == []


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write") as caught:
        scan(["head"], rounding_error(), state=tmp_path / "file" / "scan.json", key="k")
    assert caught.value.fix


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_error_that_is_no_number_names_the_unit(tmp_path: Path, bad: float) -> None:
    with pytest.raises(CalibrationError, match=r"with 'head' in higher precision is (nan|inf)"):
        scan(["stem", "head"], lambda kept: bad if kept else 1.0, state=tmp_path / "s", key="k")
    with pytest.raises(CalibrationError, match="with nothing in higher"):
        scan(["head"], lambda kept: bad)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=4), st.floats(0, 1), min_size=2, max_size=8),
    st.integers(0, 90),
)
def test_every_unit_is_ranked_once_and_those_that_cost_by_cost(costs: dict[str, float], seconds: int) -> None:
    error = rounding_error(costs)
    result = scan(list(costs), error, budget_s=seconds, clock=error.clock)
    assert sorted(result) == sorted(costs)
    places = [1 if cost is None else 0 if cost > 0 else 2 for cost in result.values()]
    assert places == sorted(places)
    dear = [cost for cost in result.values() if cost is not None and cost > 0]
    assert dear == sorted(dear, reverse=True)
    assert len(error.asked) == sum(cost is not None for cost in result.values())
