"""The races on a GPU, run small over the processor: what they count and compare is not first seen on a machine that has
one."""

import argparse
import time
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.bench import bench_gpu_cameras, bench_gpu_peers, gpu_public
from tests.bench.gpu_public import Called, Cameras, File, Subject, Submitted, SubmittedBatches
from tests.bench.gpu_race import InFlight
from tests.bench.gpu_task import TASKS, Answer, Task, agreement, scenes, worst
from tests.helpers.models import node, save

PIXELS = scenes(4)
TASK = Task("tiny", 32, False, (0.0,) * 3, (255.0,) * 3)


def subject(folder: Path, rows: int) -> Subject:
    """Ten classes of sixteen places' colors, on the processor."""
    weights = np.random.default_rng(0).normal(size=(48, 10)).astype(np.float32)
    nodes = [
        node("AveragePool", ["images"], ["mean"], kernel_shape=[8, 8], strides=[8, 8]),
        node("Flatten", ["mean"], ["flat"]),
        node("MatMul", ["flat", "weights"], ["out"]),
    ]
    path = save(folder / "tiny.onnx", nodes, {"images": ("n", 3, 32, 32)}, {"out": ("n", 10)}, {"weights": weights})
    return Subject(TASK, path, "onnxruntime", rows, folder)


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``source: bench:``, and few small buffers."""
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    gpu_public.add_kind(tmp_path)
    return tmp_path


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("made", [Submitted, SubmittedBatches, Called])
def test_frames_are_answered_in_order(tmp_path: Path, rows: int, made: Any) -> None:
    side = made(subject(tmp_path, rows), PIXELS)
    found = side.answers(8)
    assert worst(found[:4], found[4:]) == 1.0  # four frames, twice
    assert worst(found[:3], found[1:4]) < 1.0
    assert len(side.alone(3)) == 3
    busy = side.saturated(0.2)
    assert busy.n > 0 and busy.fps > 0 and busy.cpu_us > 0 and 0 < busy.p50_ms <= busy.p99_ms
    assert worst(side.answers(4), found[:4]) == 1.0  # nothing is left of going fast
    side.close()


def test_a_file_runs_only_while_it_is_measured(kind: Path) -> None:
    side = File(subject(kind, 1))
    given = side.gate.given
    time.sleep(0.3)
    assert side.gate.given == given > 0
    busy = side.saturated(0.2)
    assert busy.n > 0 and busy.fps > 0
    given = side.gate.given
    time.sleep(0.3)
    assert side.gate.given == given and not side.come()
    side.close()


def test_cameras_film_in_turns_and_every_frame_is_counted(kind: Path) -> None:
    one, two = Cameras(subject(kind, 1), 1, 20.0), Cameras(subject(kind, 4), 2, 20.0)
    ((alone, together),) = bench_gpu_cameras.in_turns(one, two, 1, 1.0)
    assert 15 <= alone.given <= 23 and 30 <= together.given <= 46
    assert 0 <= together.lost < together.given and 0 < together.p50_ms <= together.p99_ms and together.cpu_us > 0
    for cameras in (one, two):
        cameras.close()


def boxes(*corners: tuple[float, float, float, float], kind: int = 0) -> Answer:
    rows = np.array(corners, np.float32).reshape(-1, 4)
    return Answer(np.array([0.6, 0.59], np.float32)[: len(rows)], np.full(len(rows), kind), rows)


def test_answers_agree_as_far_as_each_has_what_the_other_has() -> None:
    near, far = (0.0, 0.0, 100.0, 100.0), (300.0, 0.0, 400.0, 100.0)
    moved = (1.0, 0.0, 101.0, 100.0)
    assert agreement(boxes(near, far), boxes(far, moved), 0.3) == 1.0
    assert agreement(boxes(near, far), boxes(near), 0.3) == 0.5
    assert agreement(boxes(near, far), boxes(near), 0.58) == 1.0  # the second might have missed the lowest score
    assert agreement(boxes(near), boxes(near, kind=1), 0.3) == 0.0
    assert agreement(boxes(), boxes(), 0.3) == 1.0 and agreement(boxes(), boxes(near), 0.3) == 0.0
    assert agreement(boxes(), boxes(near), 0.59) == 1.0  # weak enough to be missed, although nothing else is there


def classified(logits: Any) -> list[Answer]:
    scores = np.exp(logits - logits.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    return [Answer(row[names], names, every=row) for row, names in zip(scores, best, strict=True)]


def test_classes_agree_by_their_scores_whichever_rank_they_have() -> None:
    every = np.array([0.2, 0.19, 0.15, 0.14, 0.13, 0.125, 0.05, 0.015])
    wanted = Answer(every[:5], np.arange(5), every=every)

    def found(classes: list[int], scores: Any) -> float:
        return agreement(Answer(np.array(scores), np.array(classes)), wanted)

    assert found([0, 1, 2, 3, 4], every[:5]) == 1.0
    assert found([1, 0, 2, 3, 5], [0.2, 0.195, 0.15, 0.14, 0.13]) == 1.0  # near ties, one at the end of the five
    assert found([0, 1, 2, 3, 6], [0.2, 0.19, 0.15, 0.14, 0.13]) == 0.8  # 6 is no tie: 0.05 is wanted
    assert found([0, 1, 2, 3, 6], [0.2, 0.19, 0.15, 0.14, 0.05]) == 0.8  # that is right, but 4 should be named
    assert found([0, 1, 2, 3, 4], 2 * every[:5]) == 0.0 == found([3, 2, 0, 7, 6], every[:5])
    assert found([0, 0, 0, 0, 0], [0.2] * 5) < 0.5 and found([1], [0.19]) == 0.2
    assert found([], []) == 0.0 and found([0, 1, 2, 3, 4], [np.nan] * 5) == 0.0
    bare = Answer(wanted.scores, wanted.classes)
    assert agreement(bare, bare) == 1.0 and agreement(Answer(every[:5], np.arange(1, 6)), bare) < 0.8


def test_wrong_answers_of_a_classifier_are_found_and_roundings_are_none() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 1, (16, 1000))
    wanted = classified(logits)
    rounded = logits + random.normal(0, 0.04, (1, 1000)) + random.normal(0, 0.02, logits.shape)  # of weights, of sums
    assert worst(classified(rounded), wanted) == 1.0
    assert (
        min(np.mean(one.classes == other.classes) for one, other in zip(classified(rounded), wanted, strict=True))
        <= 0.4
    )
    assert max(agreement(one, other) for one, other in permutations(wanted, 2)) <= 0.4
    swapped = [wanted[index] for index in (0, 1, 3, 2, *range(4, 16))]
    stale = [wanted[max(index - (index == 9), 0)] for index in range(16)]
    for wrong in (swapped, stale):
        assert worst(wrong, wanted) <= 0.4
    assert worst(classified(logits + 1.5 * (np.arange(1000) % 3 == 0)), wanted) < 0.8
    assert worst(classified(np.roll(logits, 1, axis=1)), wanted) <= 0.4  # each class has the next one's number
    assert worst([Answer(each.scores * 1.5, each.classes) for each in wanted], wanted) == 0.0


class Fake(InFlight):
    """Answers at once, and notes how many it had at a time."""

    def __init__(self, rows: int, fails: bool = False) -> None:
        self.rows, self._fails, self.open, self.most, self.closed = rows, fails, 0, 0, False

    def submit(self, index: int) -> int:
        if self._fails:
            raise ValueError("no such kernel")
        self.open += 1
        self.most = max(self.most, self.open)
        return index

    def wait(self, ticket: Any) -> list[Answer]:
        time.sleep(0.001)
        self.open -= 1
        return [Answer(np.array([0.5]), np.array([(ticket + row) % 16])) for row in range(self.rows)]

    def close(self) -> None:
        self.closed = True


def test_a_side_that_fails_is_left_out_and_the_bars_are_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = {"careful": Fake(1), "bare-rtx": Fake(1, fails=True), "edgert-ort": Fake(1), "compile": Fake(1)}
    answers = [Answer(np.array([0.5]), np.array([index])) for index in range(16)]
    entry = cast("Any", SimpleNamespace(task=TASKS["resnet50"], answers=answers))

    def made(race: bench_gpu_peers.Race, name: str) -> Any:
        if name == "compile":
            raise ImportError("no torch here")
        return sides[name]

    monkeypatch.setattr(bench_gpu_peers.Race, "_made", made)
    until = time.perf_counter() + 60
    options = argparse.Namespace(sides=list(sides), rounds=2, seconds=0.1, alone=5, until=until)
    found = {figure.name: figure for figure in bench_gpu_peers.Race(entry, 1, tmp_path, options).run()}
    printed = capsys.readouterr().out
    assert "bare-rtx: left out, ValueError: no such kernel" in printed
    assert "compile: left out, ImportError: no torch here" in printed
    careful = found["resnet50 b1: careful"]
    assert careful.detail["alone_n"] == 5 and careful.detail["agreement"] == 1.0 and careful.n > 10
    assert found["resnet50 b1: edgert-ort / careful"].bar == 1.15
    assert found["resnet50 b1: edgert-ort, processor time per frame"].bar == 400
    assert not [name for name in found if "bare" in name or "compile" in name]
    assert all(side.closed for side in sides.values() if side is not sides["compile"])
    options.until = 0.0
    assert not list(bench_gpu_peers.Race(entry, 1, tmp_path, options).run())
    assert "no time is left" in capsys.readouterr().out
