"""A model on a GPU that is swapped while frames come. The GPU is a double; its kernels compute nothing."""

import json
import shutil
from pathlib import Path

import pytest

from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.running import Running
from edgert.stages.gpu.infer_stage import GpuInfer
from edgert.swap import candidate
from edgert.swap.guard import AsyncGuard
from tests.helpers.gpu_pipeline import Rig
from tests.helpers.waiting import wait_until

BATCH = "  out: {sink: jsonl, from: find, path: out.jsonl}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CudaDevice, "capture", capture)
    monkeypatch.setattr(
        candidate, "_check_task", lambda *_: None
    )  # the small network writes vectors, which are all alike
    monkeypatch.setattr(candidate, "measure_memory", lambda *_: 0)
    monkeypatch.setattr(Running, "prepared_why", "")


@pytest.mark.parametrize("batch", ["", ", batch: {max: 4, wait: 5ms}"])
def test_runs_under_way_end_with_the_model_that_began_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: str
) -> None:
    rig = Rig(tmp_path, monkeypatch, BATCH, count=100_000, live=True)
    rig.path.write_text(
        rig.path.read_text().replace(
            "infer: parts, from: cam", f"infer: parts, from: cam, drop: never, queue: 4{batch}"
        )
    )
    shutil.copy(tmp_path / "parts.onnx", tmp_path / "new.onnx")
    with rig.pipeline() as pipeline:
        pipeline.start()
        slots = len(pipeline._assembly.inferences)
        for goes_back in (True, False, True):
            pipeline.control.swap("parts", tmp_path / "new.onnx", shadow=0, keep=30 if goes_back else 0)
            swap = pipeline._running.swaps["parts"]
            wait_until(lambda swap=swap: swap.state.phase not in ("loading", "shadow"), 30)
            stage = pipeline._assembly.task("find").stage
            assert isinstance(stage, AsyncGuard) and isinstance(stage.active, GpuInfer), swap.state
            at = rig.camera.given
            wait_until(lambda at=at: rig.camera.given > at + 100, 30)
            if goes_back:
                pipeline.control.back("parts")
            assert swap.wait(30) and swap.state.phase == ("back" if goes_back else "done")
            assert len(pipeline._assembly.inferences) == slots
        pipeline.stop()
        pipeline.wait(30)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["frame"] for row in rows] == list(range(len(rows))) and rig.camera.starved == 0
    assert len({row.get("models", {}).get("find", "") for row in rows}) == 2
    assert rig.camera.leased == 0
