"""A pipeline that is called, whose stage does not return: it is named, its engine ended, and the others closed."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgert import Pipeline
from edgert.assemble import calling
from edgert.errors import BuildError, EdgertError, StageError
from edgert.runtime import Result
from tests.faults.test_hangs import endless
from tests.helpers.waiting import wait_until

PATIENCE_S = 30.0
IMAGE = np.full((48, 64, 3), 255, np.uint8)
FILE = """
watchdog: 50ms
models: {{long: {{onnx: long.onnx, task: {{embed: none}}, input: {{std: 1}}, replicas: 1}}}}
engines: [onnxruntime]
stages:
  cam: {{source: api}}
  kept: {{sink: jsonl, path: kept.jsonl, from: cam}}
  {stage}
  behind: {{sink: jsonl, path: behind.jsonl, from: cam}}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def written(stage: str) -> Path:
        (tmp_path / "p.yaml").write_text(FILE.format(stage=stage))
        return tmp_path / "p.yaml"

    (tmp_path / "long.onnx").write_bytes(endless())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edgert.runtime.watchdog.FIRST_S", 0.1)
    monkeypatch.setattr("edgert.runtime.watchdog.OPENINGS", 0)
    monkeypatch.setattr(calling, "_HANGS_S", 0.3)
    monkeypatch.setattr(calling, "_END_S", PATIENCE_S)
    return written


class Calls(threading.Thread):
    def __init__(self, pipeline: Pipeline, *images: object) -> None:
        super().__init__(daemon=True)
        self.pipeline, self.images, self.error = pipeline, images, ""
        self.start()

    def run(self) -> None:
        try:
            for image in self.images:
                self.pipeline(image)
        except EdgertError as error:
            self.error = str(error)


class Hangs:
    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, result: Result) -> None:
        if result.frame.index == 2:
            self.entered.set()
            assert self.release.wait(PATIENCE_S)


def test_a_stage_that_hangs_is_named_and_left_behind(
    write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    hangs = Hangs()
    pipeline = Pipeline(write("hang: {sink: callback, from: cam}"), callbacks={"hang": hangs})
    caller = Calls(pipeline, *[IMAGE] * 3)
    assert hangs.entered.wait(PATIENCE_S)
    wait_until(lambda: "stage 'hang' has been in one call for" in caplog.text)
    assert "test_hanging_calls.py:" in caplog.text and pipeline.summary().stages["hang"].state.stuck_s > 0
    other = Calls(pipeline, IMAGE)
    with pytest.raises(StageError, match="stage hang does not end") as caught:
        pipeline.close()
    assert "test_hanging_calls.py:" in caught.value.why and not pipeline.running
    other.join(PATIENCE_S)
    assert "stage hang does not end" in other.error, "nor does who waits for its turn wait for ever"
    for name in ("kept", "behind"):
        assert Path(f"{name}.jsonl").read_bytes().count(b"\n") in (2, 3), "they are closed, and whole"
    hangs.release.set()
    caller.join(PATIENCE_S)
    assert "returned too late" in caller.error
    assert not [one for one in threading.enumerate() if one.name == "edgert:supervisor"]


def test_a_stage_that_goes_on_is_no_error(write: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs()
    with Pipeline(write("hang: {sink: callback, from: cam}"), callbacks={"hang": hangs}) as pipeline:
        caller = Calls(pipeline, *[IMAGE] * 3)
        wait_until(lambda: "stage 'hang' has been in one call for" in caplog.text)
        hangs.release.set()
        caller.join(PATIENCE_S)
        wait_until(lambda: "stage 'hang' continues" in caplog.text)
        assert not caller.error and pipeline(IMAGE).frame.index == 3


@pytest.mark.parametrize("watchdog", ["50ms", "off"])
def test_a_model_that_hangs_is_ended(
    watchdog: str, write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """By the watchdog; and where there is none, by whoever closes the pipeline."""
    path = write(f"model: {{infer: long, from: cam, watchdog: {watchdog}}}")
    with pytest.raises(BuildError, match="a run of the model was ended"), Pipeline(path) as pipeline:
        pipeline(np.zeros_like(IMAGE))
        if watchdog == "off":
            caller = Calls(pipeline, IMAGE)
            wait_until(lambda: pipeline.summary().stages["model"].state.in_call)
            pipeline.close()
        pipeline(IMAGE)
    assert ("stage 'model' has been in one call for" in caplog.text) == (watchdog != "off")
    if watchdog == "off":
        caller.join(PATIENCE_S)
        assert "a run of the model was ended" in caller.error
