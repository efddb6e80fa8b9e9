"""PyTorch's side of the races on a GPU, on the processor: its networks, and that its answers are edgert's."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

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
from tests.bench.gpu_task import IOU, LIMIT, TASKS, TOP, Answer, agreement, scenes, worst
from tests.helpers.gpu_reference import preprocess
from tests.helpers.gpu_target import target

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from tests.bench import gpu_bare, gpu_careful, gpu_peer  # noqa: E402

PIXELS = scenes(4)
AGREEMENT, FEWEST = 0.8, 40


def lines_of(name: str, score: float = 0.0) -> gpu_careful.Lines:
    """In float32 on the processor."""
    task = replace(TASKS[name], score=score)
    images = gpu_careful.Prepared(task)(torch.from_numpy(np.stack(PIXELS[:2])))
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


def half(lines: gpu_careful.Lines) -> gpu_careful.Lines:
    """The same, with what comes out of every layer in FP16."""
    lines = copy.deepcopy(lines)
    for part in lines.net.modules():
        if isinstance(part, torch.nn.Conv2d | torch.nn.Linear | torch.nn.SiLU | torch.nn.ReLU):
            part.register_forward_hook(lambda part, given, out: out.half().float())
    return lines


def added_in_half(lines: gpu_careful.Lines) -> gpu_careful.Lines:
    """:func:`half`, with sums that are rounded to FP16 after every 16 products, as tensor cores may have them."""
    lines = half(lines)

    def convolved(part: Any, image: Any) -> Any:
        (height, width), (down, across) = part.kernel_size, part.stride
        columns = torch.nn.functional.unfold(image, part.kernel_size, 1, part.padding, part.stride)[0]
        total = torch.zeros(part.out_channels, columns.shape[1])
        for weights, values in zip(part.weight.flatten(1).split(16, 1), columns.split(16), strict=True):
            total = (total + weights @ values).half().float()
        rows = (image.shape[2] + 2 * part.padding[0] - height) // down + 1
        columns_out = (image.shape[3] + 2 * part.padding[1] - width) // across + 1
        return total.view(1, -1, rows, columns_out) + part.bias.view(1, -1, 1, 1)

    for part in lines.net.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.forward = partial(convolved, part)
    return lines


def answers_of(lines: gpu_careful.Lines, images: Any) -> list[Answer]:
    with torch.no_grad():
        return lines.known(torch.cat([lines.net(image[None]) for image in images]))


def moved(answer: Answer, pixels: float) -> Answer:
    return answer if answer.boxes is None else replace(answer, boxes=answer.boxes + pixels)


@pytest.mark.parametrize("name", list(TASKS))
def test_answers_agree_through_roundings_and_not_between_frames(name: str) -> None:
    """Of weights in FP16; no frame's are but a few."""
    lines = lines_of(name)
    lines.net.half().float()
    images = lines.prepare(torch.from_numpy(np.stack(PIXELS)))
    with torch.no_grad():
        if lines.task.detects:
            lines.task = replace(lines.task, score=gpu_careful.telling_score(lines.net(images)))
    score, task = lines.task.score, lines.task
    wanted, room = answers_of(lines, images), target("nchw", "float16", 1, task.side, task.side)
    whole = [preprocess(frame_of(each), task.config, room) for each in PIXELS]
    levels = [torch.from_numpy(each).permute(2, 0, 1).float() for each in whole]
    assert worst(answers_of(half(lines), images), wanted, score) >= AGREEMENT
    assert worst(answers_of(half(lines), levels), answers_of(lines, levels), score) >= AGREEMENT
    assert worst(answers_of(lines, levels), wanted, score) >= 0.6  # gray levels with fractions, and without
    assert max(agreement(one, other, score) for one, other in permutations(wanted, 2)) <= 0.4
    for wrong in (images.roll(1, 3), images[:, [2, 1, 0]], images.flip(3), images.roll(1, 0)):
        assert worst(answers_of(half(lines), wrong), wanted, score) <= 0.4
    if not task.detects:
        assert worst(answers_of(added_in_half(lines), images), wanted) >= AGREEMENT
    if task.detects:
        assert min(len(each.scores) for each in wanted) >= FEWEST
        assert max(agreement(each, moved(each, 48.0), score) for each in wanted) <= 0.5


class OnTheProcessor(gpu_bare.Bare):
    """An engine that needs no GPU; runs when it is given a batch."""

    def open(self, model: Path, stream: int) -> None:
        self.close()

    def enqueue(self) -> None:
        self.out.copy_(self._lines.net(self.image))

    def submit(self, index: int) -> Any:
        self.enqueue()
        return torch.cuda.Event()

    def close(self) -> None:
        pass


def test_an_engine_alone_answers_every_frame_and_keeps_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    for name in ("Stream", "Event", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock)
    for name in ("synchronize", "graph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    lines, frames = lines_of("resnet50"), [torch.from_numpy(each) for each in PIXELS]
    side = OnTheProcessor(lines, frames, 2, Path("no.onnx"))
    before = side.image.clone()
    wanted = answers_of(lines, lines.prepare(torch.stack(frames)))
    assert worst(side.answers(4), wanted) == 1.0
    assert len(side.answers(4)) == 4 and torch.equal(side.image, before)


@pytest.mark.parametrize("name", list(TASKS))
def test_answers_are_edgerts_and_those_of_the_exported_model(name: str, tmp_path: Path) -> None:
    lines = lines_of(name)
    with torch.no_grad():
        out = lines.net(lines.prepare(torch.from_numpy(np.stack(PIXELS[:2]))))
        if lines.task.detects:
            lines.task = replace(lines.task, score=gpu_careful.telling_score(out))
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
        session.inputs[gpu_peer.INPUT][:] = lines.prepare(torch.from_numpy(np.stack(PIXELS[:2]))).numpy()
        (again,) = session.run()
        assert np.abs(again - out.numpy()).max() <= 1e-3 * np.abs(out.numpy()).max()
