"""A pipeline file on a GPU says what it says on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import cuda
from edgert.graph import to_bytes
from edgert.installation import demo_images
from edgert.pipeline import Pipeline
from edgert.stages.gpu.infer_gpu import GpuInference
from tests.helpers import models
from tests.helpers.gpu import gpu_or_skip

pytestmark = pytest.mark.gpu
ASSETS = Path(__file__).parents[2] / "pipelines" / "assets"
FRAMES = 40
FILE = """
schema: 1
name: gpu
engines: [{engine}]
models:
  parts:
    onnx: {assets}/parts.onnx
    task: {{detect: yolox, labels: {assets}/parts.txt, score: 0.4, iou: 0.5}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255, interpolation: {interpolation}}}
    precision: fp32
stages:
  belt: {{source: "{belt}", size: 640x480, seed: 7, limit: {frames}, realtime: false}}
  find: {{infer: parts, from: belt}}
  again: {{infer: parts, from: find, crop: {{limit: 4, min_size: 16}}}}
"""


@pytest.fixture(autouse=True)
def needs_a_gpu() -> None:
    gpu_or_skip().close()
    if missing := cuda.why_not():
        pytest.skip(missing)


def detections(
    folder: Path, engine: str, interpolation: str = "linear", stage: str = "find"
) -> tuple[list[Any], list[GpuInference]]:
    file = folder / "gpu.yaml"
    file.write_text(
        FILE.format(belt=demo_images(), engine=engine, assets=ASSETS, interpolation=interpolation, frames=FRAMES)
    )
    with Pipeline(file) as pipeline:
        found = [result.outputs[stage] for result in pipeline.results(stage, timeout=60)]
        return found, list(pipeline._assembly.inferences)


def test_finds_the_same_things(tmp_path: Path) -> None:
    wanted, none = detections(tmp_path, "onnxruntime")
    found, inferences = detections(tmp_path, "onnxruntime-cuda")
    assert len(found) == len(wanted) == FRAMES and not none and len(inferences) == 2
    assert sum(map(len, wanted)) > FRAMES
    same = 0
    for one, other in zip(found, wanted, strict=True):
        if len(one) == len(other) and np.array_equal(one.classes, other.classes):
            same += np.allclose(one.boxes, other.boxes, atol=1.0) and np.allclose(one.scores, other.scores, atol=0.02)
    assert same >= 0.9 * FRAMES  # TF32 may move a box across the threshold


def test_crops_are_looked_at_again(tmp_path: Path) -> None:
    wanted, _ = detections(tmp_path, "onnxruntime", stage="again")
    found, inferences = detections(tmp_path, "onnxruntime-cuda", stage="again")
    assert len(inferences) == 2
    counts = [[len(record) for record in crops.records] for crops in found]
    assert sum(map(len, counts)) > FRAMES
    same = [mine == [len(record) for record in crops.records] for mine, crops in zip(counts, wanted, strict=True)]
    assert sum(same) >= 0.8 * FRAMES


def test_the_gpu_reads_the_frames_of_one_camera_where_they_were_written(tmp_path: Path) -> None:
    wanted, _ = detections(tmp_path, "onnxruntime")
    file = tmp_path / "camera.yaml"
    text = FILE.format(
        belt=demo_images(), engine="onnxruntime-cuda", assets=ASSETS, interpolation="linear", frames=FRAMES
    )
    file.write_text(text.replace("realtime: false", "realtime: true").split("  again:")[0])
    with Pipeline(file) as pipeline:
        found = {result.frame.index: result.outputs["find"] for result in pipeline.results("find", timeout=60)}
        (inference,) = pipeline._assembly.inferences
    assert inference.device.frames == "mapped" and found  # a camera's frames are dropped while the model opens
    same = [len(record) == len(wanted[index]) for index, record in found.items()]
    assert sum(same) >= 0.9 * len(found)


@pytest.mark.parametrize("how", ["area", "cubic"])
def test_every_interpolation_is_done_on_the_gpu(tmp_path: Path, how: str) -> None:
    wanted, _ = detections(tmp_path, "onnxruntime", how)
    found, inferences = detections(tmp_path, "onnxruntime-cuda", how)
    assert len(inferences) == 2
    assert sum(len(one) == len(other) for one, other in zip(found, wanted, strict=True)) >= 0.9 * FRAMES


BATCHED = """
schema: 1
name: batch
engines: [{engine}]
models:
  net: {{onnx: net.onnx, task: {{classify: logits, top: 4}}, input: {{resize: stretch, std: 255}}, precision: fp16}}
stages:
  one: {{source: "{belt}", size: 96x64, limit: 12, realtime: false, seed: 1}}
  two: {{source: "{belt}", size: 128x96, limit: 9, realtime: false, seed: 2}}
  kind: {{infer: net, from: [one, two], batch: {{max: 4, wait: 5ms}}}}
"""


def test_float16_runs_in_batches(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(to_bytes(models.means(("n", 3, 8, 8))))
    found = []
    for engine in ("onnxruntime", "onnxruntime-cuda"):
        file = tmp_path / f"{engine}.yaml"
        file.write_text(BATCHED.format(belt=demo_images(), engine=engine))
        with Pipeline(file) as pipeline:
            results = pipeline.results("kind", timeout=60)
            found.append({(one.frame.stream, one.frame.index): one.outputs["kind"] for one in results})
            assert bool(pipeline._assembly.inferences) is (engine == "onnxruntime-cuda")
    assert len(found[1]) == 21 and found[0].keys() == found[1].keys()
    for key, record in found[1].items():
        assert np.allclose(np.sort(record.scores), np.sort(found[0][key].scores), rtol=5e-3)


def test_two_models_share_the_upload_of_a_frame(tmp_path: Path) -> None:
    file = tmp_path / "gpu.yaml"
    text = FILE.format(
        belt=demo_images(), engine="onnxruntime-cuda", assets=ASSETS, interpolation="linear", frames=FRAMES
    )
    file.write_text(text.replace(", crop: {limit: 4, min_size: 16}", ""))
    with Pipeline(file) as pipeline:
        assert len(list(pipeline.results("again", timeout=60))) == FRAMES
        assert len(pipeline._assembly.inferences) == 2
        assert pipeline.summary().memory.bytes_copied_per_frame < 1.5 * 640 * 480 * 3


def test_the_summary_counts_what_goes_up(tmp_path: Path) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text(
        FILE.format(belt=demo_images(), engine="onnxruntime-cuda", assets=ASSETS, interpolation="linear", frames=FRAMES)
    )
    with Pipeline(file) as pipeline:
        assert len(list(pipeline.results("find", timeout=60))) == FRAMES
        summary = pipeline.summary()
    assert summary.memory.copies_per_frame >= 1 and summary.memory.bytes_copied_per_frame >= 640 * 480 * 3 // 2


URGENT = """
  first:
    onnx: {assets}/parts.onnx
    task: {{detect: yolox, labels: {assets}/parts.txt, score: 0.4, iou: 0.5}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}
    precision: fp32
    priority: high
stages:
  ahead: {{infer: first, from: belt}}
"""


def test_a_model_that_goes_first_finds_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted, _ = detections(tmp_path, "onnxruntime-cuda")
    file = tmp_path / "two.yaml"
    text = FILE.replace("\nstages:\n", URGENT)
    wanted_file = text.format(
        belt=demo_images(), engine="onnxruntime-cuda", assets=ASSETS, interpolation="linear", frames=FRAMES
    )
    file.write_text(wanted_file)
    with Pipeline(file) as pipeline:
        found = [result.outputs["ahead"] for result in pipeline.results("ahead", timeout=60)]
        assert len(pipeline._assembly.inferences) == 3
    assert len(found) == FRAMES and "priority: high is not used" not in caplog.text
    for one, other in zip(found, wanted, strict=True):
        assert len(one) == len(other) and np.allclose(one.boxes, other.boxes, atol=1e-3)
