"""How many of which boards: the fewest, then the least watts, as trying all of them finds; what one board carries."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from edgert.config import PipelineFile, load_pipeline
from edgert.errors import ConfigError
from edgert.placement.plan_record import BoardPlan, Check, Plan, Row
from edgert.planner.many_cameras import BoardCapacity, CameraPlan, fewest_boards, plan_cameras, render, with_cameras
from tests.helpers import command

PIPELINE = {
    "stages": {
        "cam": {"source": "synthetic:noise", "size": "64x64", "fps": 10},
        "shown": {"sink": "null", "from": "cam"},
    }
}


def carries(carried: tuple[int, ...], counts: tuple[int, ...], spare: int) -> int:
    """Return the cameras that are carried when the largest boards fail."""
    each = sorted(itertools.chain.from_iterable([one] * count for one, count in zip(carried, counts, strict=True)))
    return sum(each[: len(each) - spare]) if len(each) > spare else 0


def tried(carried: tuple[int, ...], watts: tuple[int, ...], cameras: int, spare: int) -> tuple[int, int] | None:
    """Return the fewest boards and their least watts, by trying all numbers of each."""
    if not any(carried):
        return None
    best = None
    for counts in itertools.product(*(range(cameras + spare + 1 if one else 1) for one in carried)):
        if carries(carried, counts, spare) >= cameras:
            key = sum(counts), sum(count * one for count, one in zip(counts, watts, strict=True))
            best = key if best is None else min(best, key)
    return best


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30)), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(0, 2),
)
def test_it_takes_what_trying_everything_finds(kinds: list[tuple[int, int]], cameras: int, spare: int) -> None:
    carried, watts = zip(*kinds, strict=True)
    counts = fewest_boards(carried, watts, cameras, spare)
    best = tried(carried, watts, cameras, spare)
    if best is None:
        assert not any(counts)
        return
    assert carries(carried, counts, spare) >= cameras
    assert (sum(counts), sum(count * one for count, one in zip(counts, watts, strict=True))) == best


def test_a_board_of_unknown_power_is_taken_last() -> None:
    assert fewest_boards([8, 8], [None, 60.0], 16) == (0, 2)
    assert fewest_boards([9, 8], [None, 60.0], 9) == (1, 0)


# What one board carries.


def row(board: str, mode: str, count: int, most: float) -> Row:
    used = count / most
    check = Check("rate", used, 0.0, f"{most} of {count}", "")
    made = Row(board, mode, "gpu", (), 1 / used, 10.0 * count, 5.0, 5.0 + count, 1, 1.0, {}, 0.0)
    return replace(made, power_error=0.1, requested_fps=10.0 * count, checks=(check,))


class Boards:
    """A planner of boards that carry so many cameras by mode, and how often it was asked."""

    def __init__(self, **most: dict[str, float]) -> None:
        self.most, self.asked = {name.replace("_", "-"): modes for name, modes in most.items()}, 0

    def __call__(self, file: PipelineFile, board: str, mode: str, *, look: bool) -> Plan:
        assert not look
        self.asked += 1
        count = sum(hasattr(stage, "source") for stage in file.config.stages.values())
        rows = [row(board, name, count, most) for name, most in self.most[board].items() if mode in ("all", name)]
        rows.sort(key=lambda one: one.verdict != "kept")
        return Plan("p", "energy", (BoardPlan(board, board.upper(), tuple(rows), 0, ()),), None, ("assumed",))


@pytest.mark.parametrize("most", [1, 2, 7, 30, 63, 64, 200])
def test_a_board_carries_as_many_as_keep_every_budget(most: int) -> None:
    boards = Boards(orin_nx_16gb={"25W": most})
    plan = plan_cameras(load_pipeline(PIPELINE), ["orin-nx-16gb"], 64, planned=boards)
    (one,) = plan.boards
    assert one.cameras == min(most, 64) and one.power_w == pytest.approx((5 + one.cameras) * 1.1)
    assert one.count == -(-64 // one.cameras) and bool(one.limit) == (most < 64)
    assert boards.asked < 20 and plan.notes == ("assumed",)


def test_fewest_boards_of_two_kinds_with_one_spare() -> None:
    boards = Boards(orin_nx_16gb={"15W": 5, "25W": 8}, agx_orin_64gb={"50W": 20}, orin_nano_4gb={"10W": 0.5})
    names = ["orin-nx-16gb", "agx-orin-64gb", "orin-nano-4gb", "jetson-nano-4gb"]
    plan = plan_cameras(load_pipeline(PIPELINE), names, 40, spare=1, planned=boards)
    assert {(one.board, one.mode): one.count for one in plan.taken} == {("agx-orin-64gb", "50W"): 3}
    assert set(plan.none) == {"orin-nano-4gb", "jetson-nano-4gb"} and "does not run" in plan.none["jetson-nano-4gb"]
    assert "3 × " in plan.headline and "even where any board fails" in plan.headline
    assert plan.power_w == pytest.approx(3 * 25 * 1.1)
    page = render(plan)
    assert plan.headline in page and "One more camera" in page and "does not run" in page
    assert json.loads(json.dumps(plan.to_json()))["boards"][0]["cameras"] == 5


def test_no_board_that_carries_one() -> None:
    plan = plan_cameras(load_pipeline(PIPELINE), ["orin-nano-4gb"], 4, planned=Boards(orin_nano_4gb={"10W": 0.9}))
    assert not plan.taken and plan.power_w == 0 and plan.headline.startswith("None of these boards")
    assert list(plan.none) == ["orin-nano-4gb"]


def test_copies_of_a_camera_feed_what_the_camera_fed() -> None:
    file = with_cameras(load_pipeline(PIPELINE), 3)
    assert list(file.config.stages) == ["cam", "cam-2", "cam-3", "shown"]
    sink: Any = file.config.stages["shown"]
    assert sink.inputs == ("cam", "cam-2", "cam-3")


def test_watts_that_are_not_known() -> None:
    one = BoardCapacity("a", "A", "M", 4, 5, None, "", 2)
    plan = CameraPlan("p", 8, 0, (one,), {}, ())
    assert plan.power_w is None and plan.headline == "2 × A in M carry 8\N{NO-BREAK SPACE}cameras."


# What is typed.


def test_several_sources_cannot_be_counted() -> None:
    two = {"stages": {**PIPELINE["stages"], "other": {"source": "synthetic:noise"}}}
    with pytest.raises(ConfigError, match="2 sources, cam, other") as caught:
        plan_cameras(load_pipeline(two), ["orin-nx-16gb"], 4, planned=Boards())
    assert caught.value.fix == "a pipeline with one of them"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--boards", "orin-nx-16gb"], "goes with --cameras"),
        (["--spare", "1"], "goes with --cameras"),
        (["--cameras", "4"], "name the boards"),
        (["--cameras", "4", "--boards", " , "], "name the boards"),
        (["--cameras", "0", "--boards", "orin-nx-16gb"], "--cameras"),
        (["--cameras", "4", "--boards", "orin-nx-16gb", "--spare", "-1"], "--spare"),
        (["--cameras", "4", "--boards", "orin-nx-16gb", "--chart"], "does not go with --cameras"),
        (["--cameras", "4", "--boards", "orin-nx-61gb"], "no board 'orin-nx-61gb'"),
        (["--cameras", "4", "--boards", "orin-nx-16gb", "--mode", "17W"], "17W"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: list[str], words: str) -> None:
    ran = command.in_process("plan", "hello", *arguments, cwd=tmp_path)
    assert ran.returncode in (1, 2) and words in " ".join((ran.stderr + ran.stdout).split())


def test_a_plan_of_cameras_is_printed_and_written(tmp_path: Path) -> None:
    how = ("--cameras", "9", "--boards", "orin-nx-16gb", "--mode", "10W", "--spare", "1")
    ran = command.in_process("plan", "hello", *how, "--json", "p.json", "--report", "p.html", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "p.json").read_text())
    (one,) = found["boards"]
    assert one["cameras"] * (one["count"] - 1) >= 9 and one["likely"] >= one["cameras"] >= 1
    assert found["verdict"] in ran.stdout.replace("\n", " ") and "even where any board fails" in found["verdict"]
    assert "One more camera" in (tmp_path / "p.html").read_text()
