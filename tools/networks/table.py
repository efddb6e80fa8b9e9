"""Networks by name, with the multiply-adds that their makers state."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from edgert.graph import Graph
from tools.networks import classify, detect, elan, transformer, yolo, yolox

_FIXED: dict[str, Callable[..., Graph]] = {
    "alexnet": classify.alexnet,
    "googlenet": classify.googlenet,
    "densenet121": partial(classify.densenet, 32, (6, 12, 24, 16), 64),
    "densenet161": partial(classify.densenet, 48, (6, 12, 36, 24), 96),
    "densenet169": partial(classify.densenet, 32, (6, 12, 32, 32), 64),
    "densenet201": partial(classify.densenet, 32, (6, 12, 48, 32), 64),
    "mnasnet0_5": partial(classify.mnasnet, 0.5),
    "mnasnet1_0": partial(classify.mnasnet, 1.0),
    "mnasnet1_3": partial(classify.mnasnet, 1.3),
    "mobilenet_v2": classify.mobilenet_v2,
    "shufflenet_v2_x0_5": partial(classify.shufflenet, (48, 96, 192), 1024),
    "shufflenet_v2_x1_5": partial(classify.shufflenet, (176, 352, 704), 1024),
    "shufflenet_v2_x2_0": partial(classify.shufflenet, (244, 488, 976), 2048),
    "squeezenet1_0": partial(classify.squeezenet, "1.0"),
    "squeezenet1_1": partial(classify.squeezenet, "1.1"),
    "vgg11": partial(classify.vgg, 1, 1, 2, 2, 2),
    "vgg11_bn": partial(classify.vgg, 1, 1, 2, 2, 2),
    "vgg13": partial(classify.vgg, 2, 2, 2, 2, 2),
    "vgg16": partial(classify.vgg, 2, 2, 3, 3, 3),
    "vgg19": partial(classify.vgg, 2, 2, 4, 4, 4),
    "vgg19_bn": partial(classify.vgg, 2, 2, 4, 4, 4),
    "resnet34-backbone": detect.resnet34_backbone,
    "retinanet-resnet34": detect.retinanet_resnet34,
    "retinanet-resnext50": detect.retinanet_resnext50,
    "ssd-mobilenet-v1": detect.ssd_mobilenet,
    "ssd-resnet34": detect.ssd_resnet34,
    **{f"resnet{depth}": partial(classify.resnet, depth) for depth in (18, 34, 50, 101, 152)},
    "resnet50-v1.5": partial(classify.resnet, 50),
}
_SIZED: dict[str, Callable[..., Graph]] = {
    "yolov7": elan.yolov7, "yolov7t": elan.yolov7_tiny, "yolov5s": yolo.yolov5s, "bert-large": transformer.bert,
    "swin-t": transformer.swin, "dinov2-vit14": partial(transformer.vit, 14),
    **{f"rf-detr-{scale}": partial(transformer.rf_detr, scale) for scale in "nsmlb"},
    **{f"{kind}vit{patch}": partial(transformer.vit, patch) for kind in ("", "clip-", "owl-") for patch in (16, 32)},
}  # fmt: skip
_SCALED: dict[str, Callable[..., Graph]] = {
    "yolov8": yolo.yolov8, "yolov9": elan.yolov9, "yolov10": yolo.yolov10, "yolo11": yolo.yolo11,
    "yolo26": yolo.yolo26, "yolox": yolox.yolox,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """Multiply-adds of a network as its makers state them, in giga, at one image size."""

    name: str
    gmacs: float
    size: int
    source: str


_NAMES = {
    "resnet50-v1.5": "resnet50", "vgg11_bn": "vgg11", "vgg19_bn": "vgg19", "clip-vit16": "vit16", "clip-vit32": "vit32",
}  # fmt: skip
_FAMILIES = (
    ("ssd-mobilenet", "mobilenet"), ("mobilenet", "mobilenet"), ("mnasnet", "mobilenet"), ("resnet", "resnet"),
    ("ssd-resnet", "resnet"), ("retinanet", "resnet"), ("vgg", "vgg"), ("alexnet", "vgg"), ("densenet", "densenet"),
    ("squeezenet", "squeezenet"), ("shufflenet", "shufflenet"), ("googlenet", "inception"),
    ("yolo11", "yolo11"), ("yolo26", "yolo11"),
)  # fmt: skip


def network_of(name: str) -> str:
    """Return the network that a name means; names of one network are left out of a fit together."""
    return _NAMES.get(name, name)


def family_of(name: str) -> str:
    """Return the family of a network; all transformers are one."""
    if is_transformer(name):
        return "transformer"
    return next((family for start, family in _FAMILIES if name.startswith(start)), name.rstrip("ntsmlx"))


def is_transformer(name: str) -> bool:
    """Return whether most of a network's work is in transformer blocks."""
    return "vit" in name or name.startswith(("bert", "swin", "rf-detr"))


_TORCH = "https://docs.pytorch.org/vision/stable/models.html"
_ULTRA = "https://docs.ultralytics.com/models"
_X = "https://github.com/Megvii-BaseDetection/YOLOX"
PUBLISHED = tuple(
    Published(*row)
    for row in (
        ("densenet121", 2.834, 224, _TORCH), ("densenet161", 7.728, 224, _TORCH), ("densenet169", 3.36, 224, _TORCH),
        ("densenet201", 4.291, 224, _TORCH), ("mnasnet0_5", 0.104, 224, _TORCH), ("mnasnet1_0", 0.314, 224, _TORCH),
        ("mnasnet1_3", 0.526, 224, _TORCH), ("mobilenet_v2", 0.301, 224, _TORCH),
        ("resnet18", 1.814, 224, _TORCH), ("resnet34", 3.664, 224, _TORCH), ("resnet50", 4.089, 224, _TORCH),
        ("resnet101", 7.801, 224, _TORCH), ("resnet152", 11.514, 224, _TORCH),
        ("shufflenet_v2_x0_5", 0.04, 224, _TORCH), ("shufflenet_v2_x1_5", 0.296, 224, _TORCH),
        ("shufflenet_v2_x2_0", 0.583, 224, _TORCH), ("squeezenet1_0", 0.819, 224, _TORCH),
        ("squeezenet1_1", 0.349, 224, _TORCH), ("vgg11", 7.609, 224, _TORCH), ("vgg13", 11.308, 224, _TORCH),
        ("vgg16", 15.47, 224, _TORCH), ("vgg19", 19.632, 224, _TORCH), ("googlenet", 1.498, 224, _TORCH),
        ("yolov5s", 8.25, 640, "https://github.com/ultralytics/yolov5"),
        ("yolov7", 52.35, 640, "https://github.com/WongKinYiu/yolov7"),
        ("yolov7t", 6.9, 640, "https://github.com/WongKinYiu/yolov7"),
        ("yolov8n", 4.35, 640, f"{_ULTRA}/yolov8/"), ("yolov8s", 14.3, 640, f"{_ULTRA}/yolov8/"),
        ("yolov8m", 39.45, 640, f"{_ULTRA}/yolov8/"), ("yolov9t", 3.85, 640, f"{_ULTRA}/yolov9/"),
        ("yolov9s", 13.2, 640, f"{_ULTRA}/yolov9/"), ("yolov9m", 38.15, 640, f"{_ULTRA}/yolov9/"),
        ("yolov10n", 3.35, 640, f"{_ULTRA}/yolov10/"), ("yolov10s", 10.8, 640, f"{_ULTRA}/yolov10/"),
        ("yolov10m", 29.55, 640, f"{_ULTRA}/yolov10/"),
        ("yolo11n", 3.25, 640, f"{_ULTRA}/yolo11/"), ("yolo11s", 10.75, 640, f"{_ULTRA}/yolo11/"),
        ("yolo11m", 34.0, 640, f"{_ULTRA}/yolo11/"), ("yolo11l", 43.45, 640, f"{_ULTRA}/yolo11/"),
        ("yolo11x", 97.45, 640, f"{_ULTRA}/yolo11/"),
        ("yolo26n", 2.7, 640, f"{_ULTRA}/yolo26/"), ("yolo26s", 10.35, 640, f"{_ULTRA}/yolo26/"),
        ("yolo26m", 34.1, 640, f"{_ULTRA}/yolo26/"), ("yolo26l", 43.2, 640, f"{_ULTRA}/yolo26/"),
        ("yolo26x", 96.95, 640, f"{_ULTRA}/yolo26/"),
        ("yoloxn", 0.54, 416, _X), ("yoloxt", 3.225, 416, _X), ("yoloxs", 13.4, 640, _X), ("yoloxm", 36.9, 640, _X),
    )
)  # fmt: skip


def build(name: str, size: int, batch: int = 1) -> Graph:
    if name in _FIXED:
        return _FIXED[name](batch=batch)
    if name in _SIZED:
        return _SIZED[name](size, batch=batch)
    family, scale = re.fullmatch(r"(\w+?)([ntsmlx])", name).groups()  # type: ignore[union-attr]
    return _SCALED[family](scale, size, batch=batch)


def known(name: str) -> bool:
    found = re.fullmatch(r"(\w+?)([ntsmlx])", name)
    return name in _FIXED or name in _SIZED or bool(found and found[1] in _SCALED)
