"""Detectors of MLPerf and of NVIDIA's DLA table: SSD and RetinaNet on ResNet and MobileNet backbones."""

from edgert.graph import Graph
from tools.networks.builder import Builder
from tools.networks.classify import residual, resnet_stages

_ANCHORS = 9


def ssd_mobilenet(batch: int = 1) -> Graph:
    """SSD-MobileNet-v1 300x300 with 91 classes: https://arxiv.org/abs/1704.04861, https://arxiv.org/abs/1611.10012."""
    b = Builder(batch, 3, 300, 300, act="relu6")
    x = b.conv("input", 32, 3, 2)
    taps = []
    for index, (out, stride) in enumerate(
        ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    ):
        channels = b.channels(x)
        x = b.conv(b.conv(x, channels, 3, stride, groups=channels), out)
        if index in (10, 12):
            taps.append(x)
    for narrow, out in ((256, 512), (128, 256), (128, 256), (64, 128)):
        x = b.conv(b.conv(x, narrow), out, 3, 2)
        taps.append(x)
    heads = [(tap, 3 if index == 0 else 6) for index, tap in enumerate(taps)]
    return b.graph(*(b.conv(tap, count * size, act=None) for tap, count in heads for size in (4, 91)))


def ssd_resnet34(batch: int = 1) -> Graph:
    """MLPerf's SSD-ResNet34 1200x1200, 81 classes: ResNet-34 whose third stage keeps its size, and six maps.

    https://github.com/mlcommons/inference/tree/r1.0/vision/classification_and_detection
    """
    b = Builder(batch, 3, 1200, 1200)
    x = b.pool(b.conv("input", 64, 7, 2), 3, 2, pad=1)
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 1)):
        for index in range(count):
            x = residual(b, x, width, 1 if index else stride, is_deep=False)
    taps = [x]
    for narrow, out, stride, pad in ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 2, 0),
                                     (128, 256, 1, 0)):  # fmt: skip
        x = b.conv(b.conv(x, narrow), out, 3, stride, pad=pad)
        taps.append(x)
    heads = zip(taps, (4, 6, 6, 6, 4, 4), (3, 3, 2, 2, 1, 1), strict=True)
    sizes = [(tap, count, stride, size) for tap, count, stride in heads for size in (4, 81)]
    return b.graph(*(b.conv(tap, count * size, 3, stride, act=None) for tap, count, stride, size in sizes))


def retinanet_resnext50(batch: int = 1) -> Graph:
    """MLPerf's RetinaNet, ResNeXt50-32x4d, 800x800, 264 classes: https://arxiv.org/abs/1708.02002."""
    b = Builder(batch, 3, 800, 800)
    return b.graph(*_retina_head(b, resnet_stages(b, 50, group_width=4), classes=264))


def retinanet_resnet34(batch: int = 1) -> Graph:
    """NVIDIA's DLA reference: RetinaNet, ResNet-34, 1280x768, 80 classes; sizes as in the paper.

    https://github.com/NVIDIA/Deep-Learning-Accelerator-SW
    """
    b = Builder(batch, 3, 768, 1280)
    return b.graph(*_retina_head(b, resnet_stages(b, 34), classes=80))


def resnet34_backbone(batch: int = 1) -> Graph:
    """The backbone alone, 1280x768: https://github.com/NVIDIA/Deep-Learning-Accelerator-SW."""
    b = Builder(batch, 3, 768, 1280)
    return b.graph(*resnet_stages(b, 34)[1:])


def _retina_head(b: Builder, stages: list[str], classes: int) -> list[str]:
    third, fourth, fifth = stages[1:]
    top = b.conv(fifth, 256, act=None)
    middle = b.add(b.conv(fourth, 256, act=None), _up_like(b, top, fourth))
    low = b.add(b.conv(third, 256, act=None), _up_like(b, middle, third))
    maps = [b.conv(tap, 256, 3, act=None) for tap in (low, middle, top)]
    sixth = b.conv(maps[2], 256, 3, 2, act=None)
    maps += [sixth, b.conv(b.activate(sixth, "relu"), 256, 3, 2, act=None)]
    ends = []
    for tap in maps:
        for columns in (classes * _ANCHORS, 4 * _ANCHORS):
            x = tap
            for _ in range(4):
                x = b.conv(x, 256, 3)
            ends.append(b.conv(x, columns, 3, act=None))
    return ends


def _up_like(b: Builder, x: str, like: str) -> str:
    return b.node("Resize", [x], (*b.shape(x)[:2], *b.shape(like)[2:]))
