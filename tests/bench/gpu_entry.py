"""A network that takes part in a race on the GPU, made by PyTorch: its ONNX files, and PyTorch's own lines over it."""

import copy
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgert.errors import EdgertError
from edgert.memory.cuda import open_device
from tests.bench.gpu_run import frame_of
from tests.bench.gpu_task import TASKS, Answer
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu_target import target
from tests.helpers.gpu_written import images_in, written

IMAGES, SETTLED_ON = 16, 4
ENGINES = {"ort": "onnxruntime-cuda", "rtx": "tensorrt"}
"""What the benchmarks call edgert's engines → ``engines:`` of a pipeline file."""


class Entry:
    """A network with what all sides need of it: PyTorch's lines (FP16, channels last), ONNX files, frames."""

    def __init__(self, name: str, folder: Path, pixels: list[Any]) -> None:
        import torch

        from tests.bench import gpu_careful, gpu_peer

        self.task, self.pixels, self._folder = TASKS[name], pixels, folder
        images = gpu_careful.Prepared(self.task)(torch.from_numpy(np.stack(pixels[:SETTLED_ON])))
        net = gpu_peer.fused(gpu_peer.settled(gpu_peer.network(name), images)).cuda().half()
        self._plain = copy.deepcopy(net)  # what is recorded must stay where it is
        self.pinned = [torch.from_numpy(each).pin_memory() for each in pixels]
        self.model = self.exported(None)
        self.lines = gpu_careful.Lines(self.task, net).cuda().half().to(memory_format=torch.channels_last)
        if self.task.detects:
            self.lines.task = self.task = replace(self.task, score=self._score())

    def exported(self, rows: int | None) -> Path:
        """ONNX of a batch size, or of any; made once in a folder."""
        from tests.bench import gpu_peer

        path = self._folder / f"{self.task.name}-b{rows or 'n'}.onnx"
        if not path.exists():
            gpu_peer.export(self._plain, self.task.side, True, path.with_suffix(f".{os.getpid()}"), rows).rename(path)
        return path

    @cached_property
    def answers(self) -> list[Answer]:
        """To all frames, by the careful lines, one frame at a time and without a graph."""
        import torch

        with torch.no_grad():
            out = torch.cat([self.lines.net(self.lines.prepare(each.cuda()[None])) for each in self.pinned])
            return self.lines.known(out)

    @cached_property
    def rounded(self) -> list[Answer]:
        """The same network's to frames made ready as edgert's kernel does it, number for number: in whole gray levels,
        as OpenCV does, where PyTorch has fractions."""
        import torch

        side, config, kernels = self.task.side, self.task.config, kernels_or_skip()
        wanted = target("nchw", "float16", 1, side, side)
        with torch.no_grad():
            bytes_ = [written(kernels, [frame_of(each)], config, wanted) for each in self.pixels]
            ready = [torch.from_numpy(images_in(one, wanted)[0]) for one in bytes_]
            images = [each.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last) for each in ready]
            return self.lines.known(torch.cat([self.lines.net(image.cuda()) for image in images]))

    def _score(self) -> float:
        import torch

        from tests.bench.gpu_careful import telling_score

        with torch.no_grad():
            return telling_score(
                torch.cat([self.lines.net(self.lines.prepare(each.cuda()[None])) for each in self.pinned])
            )


def missing() -> str:
    try:
        open_device().close()
        import torch
    except (EdgertError, ImportError) as error:
        return str(error)
    return "" if torch.cuda.is_available() else "PyTorch sees no GPU"
