"""Published speeds are compared in pairs that differ in one thing, and a prediction is right where its order is."""

import importlib
import sys

import pytest

from edgert.board.record import board
from tests.helpers.command import ROOT
from tools.fitting.decisions import Choice, Decision, Option, clocked, decisions, publisher
from tools.fitting.published import published, set_mode

CHOICE = Choice("agx-orin-64gb", "MAXN", "int8", "gpu")


def option(measured_ms: float, predicted_ms: float, choice: Choice = CHOICE, **other: object) -> Option:
    values = {"work": ("yolov8n", 640, "1"), "publisher": "somebody", "bar": 0.1, **other}
    return Option(choice=choice, measured_ms=measured_ms, predicted_ms=predicted_ms, **values)  # type: ignore[arg-type]


def other(**what: str) -> Choice:
    return Choice(**{"board": "agx-orin-64gb", "mode": "MAXN", "precision": "int8", "placement": "gpu", **what})


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (other(precision="fp16"), "precision"),
        (other(mode="MODE_30W"), "mode"),
        (other(mode="MAXN GPU 612 MHz"), "mode"),
        (other(placement="dla0"), "placement"),
        (other(board="orin-nx-16gb"), "board"),
        (other(board="orin-nx-16gb", mode="15W"), "board"),
        (other(board="orin-nx-16gb", mode="15W GPU 612 MHz"), None),
        (other(placement="dla0", precision="fp16"), None),
        (CHOICE, None),
    ],
)
def test_pairs_differ_in_one_thing(choice: Choice, kind: str | None) -> None:
    found = list(decisions([option(1.0, 1.0), option(2.0, 2.0, choice)]))
    assert [one.kind for one in found] == ([kind] if kind else [])


def test_pairs_are_of_one_network_and_one_publisher() -> None:
    slow = other(precision="fp16")
    assert not list(decisions([option(1.0, 1.0), option(2.0, 2.0, slow, work=("yolov8n", 640, "8"))]))
    assert not list(decisions([option(1.0, 1.0), option(2.0, 2.0, slow, publisher="another")]))


def test_a_decision_is_right_where_the_order_is() -> None:
    def decided(measured_ms: float, predicted_ms: float) -> Decision:
        return Decision("mode", option(1.0, 1.0), option(measured_ms, predicted_ms))

    assert decided(2.0, 3.0).is_right and not decided(2.0, 0.9).is_right
    assert not decided(2.0, 1.0).is_right  # the same time for both decides nothing
    assert decided(1.02, 1.0).is_tie and not decided(1.04, 1.0).is_tie
    assert decided(2.0, 1.2).overlaps and decided(2.0, 0.83).overlaps
    assert not decided(2.0, 1.22).overlaps and not decided(2.0, 0.8).overlaps


def test_clocks_that_were_set_by_hand_are_another_mode() -> None:
    record = board("agx-orin-64gb")
    assert clocked(record.name, record.mode("MAXN")) == "MAXN"
    assert clocked(record.name, set_mode(record, "MAXN", {"gpu_mhz": 612})) == "MAXN GPU 612 MHz"


def test_a_repository_is_one_publisher_and_any_other_page_its_own() -> None:
    address = "https://github.com/mlcommons/inference_results_v2.0/blob/"
    assert publisher(address + "425a0d3/closed/one.txt") == publisher(address + "other/closed/two.txt")
    assert publisher("https://docs.example.org/one/") != publisher("https://docs.example.org/two/")


def test_rows_that_are_only_compared_are_in_no_fit() -> None:
    timed = {(group["source"], tuple(row)) for group in published()["timings"] for row in group["rows"]}
    assert not [row for group in published()["compared"] for row in group["rows"]
                if (group["source"], tuple(row)) in timed]  # fmt: skip


def test_the_bench_counts_ties_apart_and_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/bench"), *sys.path])
    bench = importlib.import_module("bench_decisions")
    right = Decision("board", option(1.0, 1.0), option(2.0, 2.0, other(board="orin-nx-16gb")))
    doubtful = Decision("mode", option(1.0, 1.0), option(2.0, 0.95, other(mode="MODE_30W")))
    sure = Decision("mode", option(1.0, 1.0), option(2.0, 0.5, other(mode="MODE_15W")))
    tie = Decision("mode", option(1.0, 1.0), option(1.01, 0.5, other(mode="MODE_50W")))
    found = {one.name: one for one in bench.figures([right, doubtful, sure, tie], [right])}
    assert found["decisions: board, right"].holds and found["decisions: board, right"].value == 1.0
    assert found["decisions: mode, right"].value == 0.0 and found["decisions: mode, right"].detail["ties"] == 1
    assert found["decisions: all, right"].n == 3 and not found["decisions: all, right"].holds
    last = found["decisions: wrong, with bars that do not overlap"]
    assert last.value == 1 and not last.holds and len(last.detail["wrong"]) == 2
    assert capsys.readouterr().out.count("wrong: ") == 2
