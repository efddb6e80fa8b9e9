"""Networks of PyTorch to export and race against: ResNet-50 and YOLOv8s."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

CLASSES = 80
INPUT = "images"
LINEAR = 2.0
"""The mean of what comes out of a normalization, whose deviation is 1: the activation behind it is then nearly linear.
With a mean of 0, random weights make another answer of a difference of half a gray level, and many boxes of one image
where another has none."""
SPREAD = 1.0
"""Deviation of a classifier's logits from image to image; with 2, what FP16 may be apart turns the order of classes."""
RARE = -4.6
"""Objectness where there is nothing in particular, as YOLOX starts with: a probability of 0.01."""


class ConvUnit(nn.Sequential):
    def __init__(self, wide: int, out: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(wide, out, kernel, stride, (kernel - 1) // 2, bias=False),
            nn.BatchNorm2d(out),
            nn.SiLU(inplace=True),
        )


class Split(nn.Module):
    """A cross-stage partial block whose halves and every bottleneck's output are joined ("C2f")."""

    def __init__(self, wide: int, out: int, depth: int, past: bool = False) -> None:
        super().__init__()
        half = out // 2
        self.start, self.end = ConvUnit(wide, out), ConvUnit((2 + depth) * half, out)
        pairs = [nn.Sequential(ConvUnit(half, half, 3), ConvUnit(half, half, 3)) for _ in range(depth)]
        self.pairs, self.past = nn.ModuleList(pairs), past

    def forward(self, x: Tensor) -> Tensor:
        found = list(self.start(x).chunk(2, 1))
        for pair in self.pairs:
            found.append(found[-1] + pair(found[-1]) if self.past else pair(found[-1]))
        return self.end(torch.cat(found, 1))


class Pooled(nn.Module):
    """Three poolings one after the other, joined ("SPPF")."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.start, self.end = ConvUnit(wide, wide // 2), ConvUnit(2 * wide, wide)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.start(x)]
        for _ in range(3):
            found.append(self.pool(found[-1]))
        return self.end(torch.cat(found, 1))


BINS = 16
"""Distances from a cell to each side of its box, between which the network chooses."""


class DecodedHead(nn.Module):
    """Boxes in network pixels and class scores of all levels, [n, 4 + classes, cells]; each side of a box is the mean
    of a distribution over bins (Li et al. 2020, "Generalized Focal Loss")."""

    def __init__(self, widths: tuple[int, ...], side: int) -> None:
        super().__init__()
        box, kind = widths[0] // 2, widths[0]

        def branch(wide: int, inner: int, out: int) -> nn.Sequential:
            return nn.Sequential(ConvUnit(wide, inner, 3), ConvUnit(inner, inner, 3), nn.Conv2d(inner, out, 1))

        self.boxes = nn.ModuleList([branch(wide, box, 4 * BINS) for wide in widths])
        self.kinds = nn.ModuleList([branch(wide, kind, CLASSES) for wide in widths])
        self.mean = nn.Conv2d(BINS, 1, 1, bias=False).requires_grad_(False)
        self.mean.weight.data[:] = torch.arange(BINS).float().view(1, BINS, 1, 1)
        cells = [(side // stride, float(stride)) for stride in (8, 16, 32)]
        ranges = [(torch.arange(count) + 0.5, stride) for count, stride in cells]
        grid = [torch.stack(torch.meshgrid(at, at, indexing="xy")).flatten(1) * stride for at, stride in ranges]
        strides = [torch.full((1, count * count), stride) for count, stride in cells]
        self.register_buffer("centers", torch.cat(grid, 1))
        self.register_buffer("strides", torch.cat(strides, 1))

    def forward(self, levels: list[Tensor]) -> Tensor:
        boxes = torch.cat([branch(level).flatten(2) for branch, level in zip(self.boxes, levels, strict=True)], 2)
        kinds = torch.cat([branch(level).flatten(2) for branch, level in zip(self.kinds, levels, strict=True)], 2)
        shares = boxes.view(-1, 4, BINS, boxes.shape[2]).transpose(1, 2).softmax(1)
        left_top, right_bottom = (self.mean(shares).squeeze(1) * self.strides).chunk(2, 1)
        center = self.centers + (right_bottom - left_top) / 2
        return torch.cat([center, left_top + right_bottom, kinds.sigmoid()], 1)


class Yolo8(nn.Module):
    """YOLOv8s: 11.2 million weights, [n, 84, 8400] at 640 × 640, as ``detect: yolov8`` reads it.

    Written from the diagram and table of blocks in "What is YOLOv8" (Yaseen 2024, arXiv 2408.15857), with a depth of
    1/3 and a width of 1/2.
    """

    def __init__(self, side: int = 640) -> None:
        super().__init__()
        self.low = nn.Sequential(
            ConvUnit(3, 32, 3, 2), ConvUnit(32, 64, 3, 2), Split(64, 64, 1, past=True),
            ConvUnit(64, 128, 3, 2), Split(128, 128, 2, past=True),
        )  # fmt: skip
        self.middle = nn.Sequential(ConvUnit(128, 256, 3, 2), Split(256, 256, 2, past=True))
        self.high = nn.Sequential(ConvUnit(256, 512, 3, 2), Split(512, 512, 1, past=True), Pooled(512))
        self.up = nn.ModuleList([Split(768, 256, 1), Split(384, 128, 1)])
        self.shrink = nn.ModuleList([ConvUnit(128, 128, 3, 2), ConvUnit(256, 256, 3, 2)])
        self.down = nn.ModuleList([Split(384, 256, 1), Split(768, 512, 1)])
        self.head = DecodedHead((128, 256, 512), side)

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(x)
        middle = self.middle(low)
        high = self.high(middle)
        beside = self.up[0](torch.cat([functional.interpolate(high, scale_factor=2.0), middle], 1))
        first = self.up[1](torch.cat([functional.interpolate(beside, scale_factor=2.0), low], 1))
        second = self.down[0](torch.cat([self.shrink[0](first), beside], 1))
        third = self.down[1](torch.cat([self.shrink[1](second), high], 1))
        return self.head([first, second, third])


def network(name: str) -> nn.Module:
    """``resnet50`` or ``yolov8s``, with random weights that are the same each time."""
    torch.manual_seed(0)
    if name == "resnet50":
        from torchvision.models import resnet50

        return resnet50(weights=None).eval()
    net = Yolo8()
    for part in net.modules():
        if isinstance(part, nn.Conv2d) and part.weight.requires_grad:  # PyTorch's own start lets the image fade
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    for branch in net.head.kinds:
        branch[-1].weight.data /= 2.0  # scores close to one are alike in FP16
        branch[-1].bias.data[:] = RARE
    return net.eval()


def settled(net: nn.Module, images: Tensor) -> nn.Module:
    """The network with the statistics of these images in its normalization, and of a classifier in its last layer: only
    then do the answers of random weights differ from image to image, and far enough to tell a right answer from a wrong
    one; and not between roundings."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None  # the mean of what it sees
            part.reset_running_stats()
            nn.init.constant_(part.bias, LINEAR)
    net.train()
    with torch.no_grad():
        net(images)
        net.eval()
        if isinstance(last := getattr(net, "fc", None), nn.Linear):
            logits = net(images)
            last.bias -= logits.mean(0)
            scale = SPREAD / (logits - logits.mean(0)).std()
            last.weight *= scale
            last.bias *= scale
    return net


def fused(net: nn.Module) -> nn.Module:
    """The network with each normalization in the weights of the convolution that stands before it."""
    for parent in list(net.modules()):
        children = list(parent.named_children())
        for (name, part), (after, norm) in pairwise(children):
            if isinstance(part, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(part, norm))
                setattr(parent, after, nn.Identity())
    return net


def export(net: nn.Module, side: int, half: bool, path: Path, rows: int | None = None) -> Path:
    """Writes the network as ONNX; its batch size is left open, unless ``rows`` fixes it."""
    device = next(net.parameters()).device
    example = torch.zeros(rows or 1, 3, side, side, device=device, dtype=torch.float16 if half else torch.float32)
    open_batch = None if rows else {INPUT: {0: "n"}, "out": {0: "n"}}
    torch.onnx.export(
        net, (example,), str(path), input_names=[INPUT], output_names=["out"], dynamic_axes=open_batch,
        opset_version=17, dynamo=False,
    )  # fmt: skip
    return path
