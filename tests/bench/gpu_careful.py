"""PyTorch as careful people write it: normalization fused, channels last, one CUDA graph from a frame's bytes to its
answer, pinned memory, copies on a stream of their own, three batches in flight; and the same by ``torch.compile``.

The answer is made on the GPU as well, by operations of fixed size, since nothing else can be recorded: the best
candidates by score, and suppression by a few rounds of "not overlapped by a survivor", which is the greedy answer where
no chain of suppressions is longer (Zheng et al. 2021, Cluster-NMS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgert.runtime import Color
from edgert.stages.preprocess import yuv_matrix
from tests.bench.gpu_race import IN_FLIGHT, InFlight
from tests.bench.gpu_run import HEIGHT, WIDTH
from tests.bench.gpu_task import IOU, TOP, Answer, Task

CANDIDATES, CHAIN = 256, 4


class Prepared(nn.Module):
    """(n, 1620, 1920) uint8 NV12 → (n, 3, side, side), channels last; planes are scaled first, the quicker of the two
    ways that ``bench_gpu_preprocess.py`` compares."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._image, self._borders = task.image, (0, 0, task.border, task.side - task.image[0] - task.border)
        self.register_buffer("color", torch.from_numpy(yuv_matrix(Color(), "rgb")))
        self.register_buffer("mean", torch.tensor(task.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(task.std).view(1, 3, 1, 1))

    def forward(self, frames: Tensor) -> Tensor:
        rows, columns = frames.shape[1] * 2 // 3, frames.shape[2]
        luma = frames[:, None, :rows].to(self.color.dtype)
        chroma = frames[:, rows:].reshape(-1, rows // 2, columns // 2, 2).permute(0, 3, 1, 2).to(self.color.dtype)
        planes = [functional.interpolate(plane, self._image, mode="bilinear") for plane in (luma, chroma)]
        rgb = torch.einsum("rc,nchw->nrhw", self.color[:, :3], torch.cat(planes, 1))
        rgb = (rgb + self.color[:, 3].view(1, 3, 1, 1)).clamp(0, 255)
        rgb = functional.pad(rgb, self._borders, value=114)
        return ((rgb - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def classified(out: Tensor) -> Tensor:
    """(n, classes) → (n, 5, 2) float32: the best scores and their classes."""
    best = out.float().softmax(1).topk(TOP)
    return torch.stack([best.values, best.indices.float()], 2)


def detected(out: Tensor, score: float) -> Tensor:
    """(n, 84, 8400) → (n, 256, 7) float32: corners in pixels of the network, score, class, whether it stays."""
    scores, kinds = out[:, 4:].max(1)
    scores, rows = scores.float().topk(CANDIDATES, 1)
    kinds = kinds.gather(1, rows).float()
    found = out[:, :4].float().gather(2, rows[:, None].expand(-1, 4, -1)).transpose(1, 2)
    half = found[..., 2:] / 2
    boxes = torch.cat([found[..., :2] - half, found[..., :2] + half], 2)
    one, other = boxes[:, :, None], boxes[:, None]
    shared = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    area, common = (boxes[..., 2:] - boxes[..., :2]).prod(2), shared[..., 0] * shared[..., 1]
    over = (common > IOU * (area[:, :, None] + area[:, None] - common)) & (kinds[:, :, None] == kinds[:, None])
    over = over.to(out.dtype).triu(1)  # [i, j]: i is the better of the two
    stays = counts = scores >= score
    for _ in range(CHAIN):
        stays = counts & (torch.bmm(stays.to(out.dtype)[:, None], over)[:, 0] == 0)
    return torch.cat([boxes, torch.stack([scores, kinds, stays.float()], 2)], 2)


def telling_score(out: Tensor) -> float:
    """What a hundred candidates of the median frame of (n, 84, 8400) reach; or more, so that no frame has more of them
    than there is room for."""
    best = out[:, 4:].amax(1).float().topk(CANDIDATES).values
    return round(max(float(best[:, 100].median()), float(best[:, -1].max())), 3)


class Lines(nn.Module):
    """(n, 1620, 1920) uint8 NV12 on the GPU → the answer, packed into one tensor on the GPU."""

    def __init__(self, task: Task, net: nn.Module) -> None:
        super().__init__()
        self.task, self.prepare, self.net = task, Prepared(task), net.requires_grad_(False)

    def forward(self, frames: Tensor) -> Tensor:
        return self.packed(self.net(self.prepare(frames)))

    def packed(self, out: Tensor) -> Tensor:
        return detected(out, self.task.score) if self.task.detects else classified(out)

    def known(self, out: Tensor) -> list[Answer]:
        found = self.answers(self.packed(out).cpu().numpy())
        if self.task.detects:
            return found
        every = out.float().softmax(1).cpu().numpy()
        return [replace(one, every=scores) for one, scores in zip(found, every, strict=True)]

    def answers(self, packed: Any) -> list[Answer]:
        """The same on the host, as records; boxes in pixels of the frame."""
        if not self.task.detects:
            return [Answer(row[:, 0], row[:, 1]) for row in packed.copy()]
        kept = [row[row[:, 6] > 0] for row in packed]
        shift, most = np.array([[0, self.task.border], [WIDTH, HEIGHT]], np.float32)[:, [0, 1, 0, 1]]
        scale = np.float32(WIDTH / self.task.side)
        return [Answer(row[:, 4], row[:, 5], ((row[:, :4] - shift) * scale).clip(0, most)) for row in kept]


class Slot:
    def __init__(self, rows: int, size: tuple[int, ...]) -> None:
        self.frames = torch.zeros((rows, HEIGHT * 3 // 2, WIDTH), dtype=torch.uint8).cuda()
        self.answer = torch.empty(size).pin_memory()
        self.uploaded, self.done = torch.cuda.Event(), torch.cuda.Event()
        self.graph = torch.cuda.CUDAGraph()


class Careful(InFlight):
    """Careful lines in flight: one graph for each slot, from the frames' bytes to the answer's."""

    def __init__(self, lines: Lines, frames: Sequence[Tensor], rows: int) -> None:
        self._lines, self._frames, self.rows = lines, frames, rows
        self._copying, self._working = torch.cuda.Stream(), torch.cuda.Stream()
        torch.backends.cudnn.benchmark = True
        with torch.no_grad(), torch.cuda.stream(self._working):
            size = lines(torch.zeros((rows, HEIGHT * 3 // 2, WIDTH), dtype=torch.uint8).cuda()).shape
            self._slots = [Slot(rows, tuple(size)) for _ in range(IN_FLIGHT)]
            self._prepare()
        torch.cuda.synchronize()
        self._turn = 0

    def submit(self, index: int) -> Slot:
        """Puts a batch on the streams, frames from ``index`` on. Its slot must have been waited for."""
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % IN_FLIGHT
        with torch.cuda.stream(self._copying):
            for row in range(self.rows):
                slot.frames[row].copy_(self._frames[(index + row) % len(self._frames)], non_blocking=True)
            slot.uploaded.record()
        with torch.cuda.stream(self._working):
            slot.uploaded.wait()
            self._run(slot)
            slot.done.record()
        return slot

    def wait(self, slot: Slot) -> list[Answer]:
        slot.done.synchronize()
        return self._lines.answers(slot.answer.numpy())

    def close(self) -> None:
        torch.cuda.synchronize()
        self._slots.clear()

    def _prepare(self) -> None:
        for slot in self._slots:
            for _ in range(3):
                self._enqueue(slot)
            self._working.synchronize()
            with torch.cuda.graph(slot.graph, stream=self._working, capture_error_mode="thread_local"):
                self._enqueue(slot)

    def _enqueue(self, slot: Slot) -> None:
        slot.answer.copy_(self._lines(slot.frames), non_blocking=True)

    def _run(self, slot: Slot) -> None:
        slot.graph.replay()


class Compiled(Careful):
    """The same lines by ``torch.compile(mode="reduce-overhead")``, which records the graphs itself."""

    def _prepare(self) -> None:
        self._compiled = torch.compile(self._lines, mode="reduce-overhead", fullgraph=True, dynamic=False)
        for _ in range(3):  # compiles, records, replays
            for slot in self._slots:
                self._run(slot)

    def _run(self, slot: Slot) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            slot.answer.copy_(self._compiled(slot.frames), non_blocking=True)
