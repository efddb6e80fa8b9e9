"""PyTorch doing what a pipeline does: networks to export and race against, and frames made ready as people write it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
CLASSES = 80
INPUT = "images"
RARE = -4.6
"""Objectness where there is nothing in particular, as YOLOX starts with: a probability of 0.01."""


class ConvUnit(nn.Sequential):
    """Convolution, normalization, SiLU."""

    def __init__(self, wide: int, out: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(wide, out, kernel, stride, (kernel - 1) // 2, bias=False),
            nn.BatchNorm2d(out),
            nn.SiLU(inplace=True),
        )


class Residual(nn.Module):
    """A bottleneck, with or without the way past it."""

    def __init__(self, width: int, past: bool) -> None:
        super().__init__()
        self.way, self.past = nn.Sequential(ConvUnit(width, width), ConvUnit(width, width, 3)), past

    def forward(self, x: Tensor) -> Tensor:
        return x + self.way(x) if self.past else self.way(x)


class Partial(nn.Module):
    """A cross-stage partial block (Wang et al. 2019)."""

    def __init__(self, wide: int, out: int, depth: int, past: bool = True) -> None:
        super().__init__()
        half = out // 2
        self.one = nn.Sequential(ConvUnit(wide, half), *[Residual(half, past) for _ in range(depth)])
        self.other, self.end = ConvUnit(wide, half), ConvUnit(out, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(torch.cat([self.one(x), self.other(x)], 1))


class Detector(nn.Module):
    """A detector of the size and output of YOLOX-s (Ge et al. 2021): 9 million weights, [n, 8400, 85] at 640 × 640."""

    def __init__(self) -> None:
        super().__init__()
        down = [ConvUnit(wide, out, 3, 2) for wide, out in ((32, 64), (64, 128), (128, 256), (256, 512))]
        self.stem = ConvUnit(3, 32, 6, 2)
        self.low = nn.Sequential(down[0], Partial(64, 64, 1), down[1], Partial(128, 128, 3))
        self.middle = nn.Sequential(down[2], Partial(256, 256, 3))
        self.high = nn.Sequential(down[3], Partial(512, 512, 1, past=False))
        self.narrow = nn.ModuleList([ConvUnit(512, 256), ConvUnit(256, 128)])
        self.up = nn.ModuleList([Partial(512, 256, 1, past=False), Partial(256, 128, 1, past=False)])
        self.shrink = nn.ModuleList([ConvUnit(128, 128, 3, 2), ConvUnit(256, 256, 3, 2)])
        self.out = nn.ModuleList([Partial(256, 256, 1, past=False), Partial(512, 512, 1, past=False)])
        self.heads = nn.ModuleList([Head(width) for width in (128, 256, 512)])

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(self.stem(x))
        middle = self.middle(low)
        top = self.narrow[0](self.high(middle))
        wide = self.up[0](torch.cat([functional.interpolate(top, scale_factor=2.0), middle], 1))
        beside = self.narrow[1](wide)
        first = self.up[1](torch.cat([functional.interpolate(beside, scale_factor=2.0), low], 1))
        second = self.out[0](torch.cat([self.shrink[0](first), beside], 1))
        third = self.out[1](torch.cat([self.shrink[1](second), top], 1))
        levels = zip(self.heads, (first, second, third), strict=True)
        return torch.cat([head(level).flatten(2) for head, level in levels], 2).transpose(1, 2)


class Head(nn.Module):
    """Boxes, objectness and classes of one level."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.start = ConvUnit(wide, 128)
        self.kind, self.place = (nn.Sequential(ConvUnit(128, 128, 3), ConvUnit(128, 128, 3)) for _ in range(2))
        self.classes, self.box, self.object = nn.Conv2d(128, CLASSES, 1), nn.Conv2d(128, 4, 1), nn.Conv2d(128, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        place = self.place(x)
        return torch.cat([self.box(place), self.object(place).sigmoid(), self.classes(self.kind(x)).sigmoid()], 1)


def network(name: str) -> nn.Module:
    """``resnet50`` or ``detector``, with random weights that are the same each time."""
    torch.manual_seed(0)
    if name == "detector":
        detector = Detector()
        for part in detector.modules():
            if isinstance(part, nn.Conv2d):  # PyTorch's own start lets the image fade on its way through
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        for head in detector.heads:
            for last in (head.box, head.object, head.classes):
                last.weight.data /= 1000.0  # of gray levels up to 255
            head.object.bias.data[:] = RARE
        return detector.eval()
    from torchvision.models import resnet50

    return resnet50(weights=None).eval()


def export(net: nn.Module, side: int, half: bool, path: Path) -> Path:
    """Writes the network as ONNX, its batch size left open."""
    device = next(net.parameters()).device
    example = torch.zeros(1, 3, side, side, device=device, dtype=torch.float16 if half else torch.float32)
    open_batch = {INPUT: {0: "n"}, "out": {0: "n"}}
    torch.onnx.export(
        net, (example,), str(path), input_names=[INPUT], output_names=["out"], dynamic_axes=open_batch,
        opset_version=17, dynamo=False,
    )  # fmt: skip
    return path


def prepared(frame: Tensor, side: int, normalize: bool, letterbox: bool, matrix: Tensor) -> Tensor:
    """(1620, 1920) uint8 NV12 on the GPU → (1, 3, side, side) of the matrix's type; planes are scaled first, the
    quicker of the two ways that ``bench_gpu_preprocess.py`` compares."""
    height, width = frame.shape[0] * 2 // 3, frame.shape[1]
    y = frame[None, None, :height].to(matrix.dtype)
    uv = frame[height:].reshape(1, height // 2, width // 2, 2).permute(0, 3, 1, 2).to(matrix.dtype)
    to = (side * height // width, side) if letterbox else (side, side)
    planes = [functional.interpolate(plane, to, mode="bilinear", align_corners=False) for plane in (y, uv)]
    rgb = torch.einsum("rc,nchw->nrhw", matrix[:, :3], torch.cat(planes, 1)) + matrix[:, 3].view(1, 3, 1, 1)
    rgb = rgb.clamp(0, 255)
    border = (side - to[0]) // 2
    rgb = functional.pad(rgb, (0, 0, border, side - to[0] - border), value=114)
    if not normalize:
        return rgb
    mean, std = (torch.tensor(v, device=rgb.device, dtype=rgb.dtype).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (rgb - mean) / std


def classified(out: Tensor) -> Any:
    """The five best, on the host."""
    best = out.float().softmax(1).topk(5)
    return best.values.cpu(), best.indices.cpu()


def detected(score: float, iou: float, side: int) -> Callable[[Tensor], Any]:
    """Boxes after suppression, on the host."""
    from torchvision.ops import batched_nms

    cells = [(side // stride, stride) for stride in (8, 16, 32)]
    grid = torch.cat([torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="xy"), 2).view(-1, 2)
                      for n, _ in cells]).cuda()  # fmt: skip
    strides = torch.cat([torch.full((n * n, 1), float(stride)) for n, stride in cells]).cuda()

    def decode(out: Tensor) -> Any:
        found = out[0].float()
        scores, kinds = found[:, 5:].max(1)
        scores = scores * found[:, 4]
        keep = scores >= score
        found, scores, kinds = found[keep], scores[keep], kinds[keep]
        center = (found[:, :2] + grid[keep]) * strides[keep]
        half = found[:, 2:4].exp() * strides[keep] / 2
        boxes = torch.cat([center - half, center + half], 1)
        rows = batched_nms(boxes, scores, kinds, iou)[:300]
        return boxes[rows].cpu(), scores[rows].cpu(), kinds[rows].cpu()

    return decode
