"""A new model's first runs, in a process of their own."""

import threading
from pathlib import Path

import pytest

from edgert.errors import BuildError
from edgert.swap import model_trial
from edgert.swap.model_trial import measure_memory
from tests.helpers.bad_models import BAD, GOOD, OPERATORS, written


def trial(path: Path, ops: tuple[Path, ...] = (), room_bytes: int = 0) -> int | None:
    return measure_memory(path, {}, ops, room_bytes, threading.Event())


@pytest.fixture
def ops(tmp_path: Path) -> tuple[Path, ...]:
    (tmp_path / "bad_ops.py").write_text(OPERATORS)
    return (tmp_path / "bad_ops.py",)


@pytest.mark.slow  # each starts a process
def test_a_good_model_says_what_it_took() -> None:
    taken = trial(GOOD)
    assert taken is not None and 1 << 20 < taken < 1 << 29


@pytest.mark.slow
def test_what_crashes_ends_only_that_process(tmp_path: Path, ops: tuple[Path, ...]) -> None:
    with pytest.raises(BuildError) as caught:
        trial(written(tmp_path / "crash.onnx", BAD["crashing operator"]), ops)
    assert "SIGABRT" in caught.value.why and "crash.onnx failed in a process of its own" in caught.value.what


@pytest.mark.slow
def test_what_fails_says_why(tmp_path: Path, ops: tuple[Path, ...]) -> None:
    with pytest.raises(BuildError) as caught:
        trial(written(tmp_path / "fails.onnx", BAD["failing operator"]), ops)
    assert "no" in caught.value.why


@pytest.mark.slow
def test_what_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"huge\.onnx failed"):
        trial(written(tmp_path / "huge.onnx", BAD["out of memory"]), room_bytes=1 << 30)


@pytest.mark.slow
def test_what_hangs_is_ended(tmp_path: Path, ops: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_trial, "LONGEST_S", 3.0)
    with pytest.raises(BuildError, match="did not end within 3 s"):
        trial(written(tmp_path / "hangs.onnx", BAD["operator that hangs"]), ops)


def test_a_trial_can_be_canceled() -> None:
    cancel = threading.Event()
    cancel.set()
    assert measure_memory(GOOD, {}, (), 0, cancel) is None


@pytest.mark.slow
def test_operators_may_print_more_than_a_pipe_holds(tmp_path: Path) -> None:
    (tmp_path / "loud_ops.py").write_text("print('x' * 200_000)\n")
    assert trial(GOOD, (tmp_path / "loud_ops.py",)) is not None
