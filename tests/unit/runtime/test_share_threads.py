"""Who shares a thread with whom: what a stage declares of its effort decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgert.runtime import Task
from edgert.runtime.inline_loop import share_threads
from edgert.stages.gpu.gpu_crops import AlreadyInferred
from edgert.stages.sink.results import CallbackSink, JsonlSink, NullSink
from tests.helpers.stages import Does, Later, Numbers, link

CALLBACK, NULL = CallbackSink("end", lambda result: None), NullSink()
LINES, LOOKED = JsonlSink("end", Path("lines.jsonl")), AlreadyInferred("end")


def shares(end: Any, *others: Any, live: bool = False, on_gpu: bool = False) -> bool:
    """Whether a stage runs in the thread of the one before, to which others listen, too."""
    source, model = Task("cam", Numbers(live=live)), Task("find", Later() if on_gpu else Does())
    listeners = [Task(f"end{number}", one) for number, one in enumerate((end, *others))]
    link(source, model)
    for one in listeners:
        link(model, one)
    tasks = [source, model, *listeners]
    share_threads(tasks)
    assert source.execution.carrier is model.execution.carrier is None
    assert listeners[0].thread is (model if listeners[0].execution.carrier else listeners[0])
    return listeners[0].execution.carrier is model


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_does_little_runs_where_it_is_alone_and_nothing_is_live(on_gpu: bool) -> None:
    assert shares(LINES, on_gpu=on_gpu) and shares(NULL, on_gpu=on_gpu)
    assert not shares(LINES, live=True, on_gpu=on_gpu)  # a disk that is slow costs no frame
    assert not shares(LINES, Does(), on_gpu=on_gpu)  # nor does it hold up others


def test_a_callback_runs_where_a_gpu_works_meanwhile() -> None:
    assert shares(CALLBACK, on_gpu=True)
    assert not shares(CALLBACK) and not shares(CALLBACK, live=True, on_gpu=True)
    assert not shares(CALLBACK, NULL, on_gpu=True)


def test_what_does_nothing_never_has_a_thread() -> None:
    assert shares(LOOKED, live=True) and shares(LOOKED, Does(), live=True)


def test_what_declares_nothing_has_a_thread() -> None:
    assert not shares(Does(), on_gpu=True) and not shares(Later(), on_gpu=True)


def test_a_source_does_no_work_of_others() -> None:
    source, end = Task("cam", Numbers()), Task("end", LINES)
    link(source, end)
    share_threads([source, end])
    assert end.execution.carrier is None
