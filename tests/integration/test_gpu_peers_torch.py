"""PyTorch's side of the races on a GPU, on the processor: its networks, and that its answers are edgert's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgert.backend import EngineOptions
from edgert.backend.ort import OrtBackend
from edgert.config import InputConfig
from edgert.graph import load
from edgert.stages.crop import Geometry
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.yolo import YoloV8
from edgert.stages.preprocess import Preprocessor
from tests.bench.gpu_run import frame_of
from tests.bench.gpu_task import IOU, LIMIT, TASKS, TOP, Answer, scenes, worst

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from tests.bench import gpu_careful, gpu_peer  # noqa: E402

PIXELS = scenes(2)


def lines_of(name: str, score: float = 0.0) -> gpu_careful.Lines:
    """In float32 on the processor."""
    task = replace(TASKS[name], score=score)
    images = gpu_careful.Prepared(task)(torch.from_numpy(np.stack(PIXELS)))
    return gpu_careful.Lines(task, gpu_peer.fused(gpu_peer.settled(gpu_peer.network(name), images)))


def test_yolov8s_has_the_size_that_is_published() -> None:
    net = gpu_peer.network("yolov8s")
    assert round(sum(part.numel() for part in net.parameters()) / 1e6, 1) == 11.2
    with torch.no_grad():
        out = net(torch.rand(2, 3, 640, 640))
    assert tuple(out.shape) == (2, 84, 8400)


def test_normalization_goes_into_the_convolutions() -> None:
    net = gpu_peer.settled(gpu_peer.network("yolov8s"), torch.rand(2, 3, 128, 128).repeat(1, 1, 5, 5))
    image = torch.rand(1, 3, 640, 640)
    with torch.no_grad():
        before, after = net(image), gpu_peer.fused(net)(image)
    assert not [part for part in net.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert torch.allclose(before, after, atol=0.05)  # of pixels up to 640


@pytest.mark.parametrize("name", list(TASKS))
def test_frames_are_made_ready_as_edgert_does(name: str) -> None:
    task = TASKS[name]
    config = InputConfig(resize="letterbox" if task.letterbox else "stretch", mean=task.mean, std=task.std)
    wanted = np.empty((1, 3, task.side, task.side), np.float32)
    Preprocessor(config, wanted).into(0, frame_of(PIXELS[0]))
    found = gpu_careful.Prepared(task)(torch.from_numpy(PIXELS[0])[None]).numpy()
    levels = np.abs(found - wanted) * np.array(task.std).reshape(3, 1, 1)
    assert levels.mean() < 1.0 and np.percentile(levels, 99) < 8.0


@pytest.mark.parametrize("name", list(TASKS))
def test_answers_are_edgerts_and_those_of_the_exported_model(name: str, tmp_path: Path) -> None:
    lines = lines_of(name)
    with torch.no_grad():
        out = lines.net(lines.prepare(torch.from_numpy(np.stack(PIXELS))))
        if lines.task.detects:
            lines.task = replace(lines.task, score=round(float(out[:, 4:].amax(1).topk(100).values[:, -1].max()), 3))
        packed = lines.packed(out).numpy()
    task, found = lines.task, lines.answers(packed)
    decoder = Detector(YoloV8(), task.score, IOU, LIMIT) if task.detects else Classify("logits", TOP)
    config = InputConfig(resize="letterbox" if task.letterbox else "stretch")
    geometry = Preprocessor(config, np.empty((1, 3, task.side, task.side), np.float32)).into(0, frame_of(PIXELS[0]))
    assert isinstance(geometry, Geometry)
    records = [decoder([each], geometry) for each in out.numpy()]
    ours = [Answer(one.scores, one.classes, getattr(one, "boxes", None)) for one in records]
    assert worst(found, ours) == 1.0
    assert min(len(one.scores) for one in found) >= 5
    assert worst(found[:1], found[1:]) < 0.9  # the frames differ, and so do their answers

    for rows in (None, 2):
        path = gpu_peer.export(lines.net, task.side, False, tmp_path / f"{rows}.onnx", rows)
        profiles = {} if rows else {"default": {gpu_peer.INPUT: (2, 3, task.side, task.side)}}
        session = OrtBackend().compile(load(path), EngineOptions(profiles=profiles)).session()
        session.inputs[gpu_peer.INPUT][:] = lines.prepare(torch.from_numpy(np.stack(PIXELS))).numpy()
        (again,) = session.run()
        assert np.abs(again - out.numpy()).max() <= 1e-3 * np.abs(out.numpy()).max()
