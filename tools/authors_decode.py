"""Random outputs of detection heads, decoded by the heads' own authors, for tests/bench/bench_decoders.py.

    python tools/authors_decode.py FOLDER [--count 120] [--rt-detr CLONE] [--d-fine CLONE] [--yolox CLONE] ...

It runs in a separate environment that is no part of edgert, and only its numbers are kept, because some of these
packages are under the AGPL. It uses the packages that are installed there, and names those that are missing:

    python3.10 -m venv authors && authors/bin/pip install torch==1.12.1 torchvision==0.13.1 "numpy<2" scikit-learn
    authors/bin/pip install "numpy<2" "opencv-python-headless<4.12" pyyaml pillow
    authors/bin/pip install "numpy<2" requests psutil matplotlib pandas seaborn tqdm scipy
    authors/bin/pip install --no-deps ultralytics yolov5 sas-yolov7 super-gradients rfdetr nvidia-tao-deploy

PP-YOLOE needs another environment with paddlepaddle==2.6.2, paddledet==2.6.0 (--no-deps), pycocotools, scikit-learn,
shapely and most of the above. RT-DETR, D-FINE, YOLOX and NanoDet are clones of github.com/lyuwenyu/RT-DETR,
github.com/Peterande/D-FINE, github.com/Megvii-BaseDetection/YOLOX and github.com/RangiLyu/nanodet. If a package imports
more than its post-processing needs, only one file of it is loaded, with stubs for the rest.
"""

import argparse
import ast
import importlib.util
import json
import sys
import types
import warnings
from collections import UserDict
from pathlib import Path

import numpy as np

SIDE, CLASSES, CELLS = 320, 12, 2100
SCORE, IOU, LIMIT = 0.25, 0.45, 300
CASES = {}


def case(decoder, iou=IOU, **options):
    """Return a decorator that registers a function from a random generator to outputs and the authors' result."""

    def known(function):
        CASES[function.__name__.replace("_", "-")] = (function, {"decoder": decoder, "iou": iou, "options": options})
        return function

    return known


# What a detector could say of an image.


def objects(rng, most=40, side=SIDE):
    """Return boxes x, y, w, h of candidates, several around each object, with scores and classes.

    No two overlap by almost exactly what is asked for: there the last bits of a float32 decide, and some authors shift
    boxes by thousands of pixels to keep classes apart.
    """
    while True:
        boxes, scores, classes = drawn(rng, most, side)
        ends = corners(boxes).astype(np.float64)
        shared = np.minimum(ends[:, None, 2:], ends[None, :, 2:]) - np.maximum(ends[:, None, :2], ends[None, :, :2])
        shared, area = np.maximum(shared, 0).prod(axis=2), (ends[:, 2:] - ends[:, :2]).prod(axis=1)
        overlap = shared / (area[:, None] + area - shared)
        if all(np.abs(overlap - iou).min() > 5e-4 for iou in (IOU, 0.7)):
            return boxes, scores, classes


def drawn(rng, most, side):
    count = int(rng.integers(1, most))
    each = rng.integers(1, 9, count)
    size = np.exp(rng.uniform(np.log(8), np.log(side * 0.6), (count, 2)))
    center = rng.uniform(0, side, (count, 2))
    kinds = rng.integers(0, CLASSES, count)
    which = np.repeat(np.arange(count), each)
    jitter = rng.normal(0, 0.06, (len(which), 4))
    boxes = np.hstack([center[which] + jitter[:, :2] * size[which], size[which] * np.exp(jitter[:, 2:])])
    classes = np.where(rng.random(len(which)) < 0.9, kinds[which], rng.integers(0, CLASSES, len(which)))
    return boxes.astype(np.float32), rng.uniform(0.05, 0.97, len(which)).astype(np.float32), classes


def table(rng, boxes, scores, classes, rows=CELLS, columns=CLASSES, second=0.3):
    """Return (rows, 4) boxes and (rows, columns) scores, mostly of background, and the rows of objects."""
    places = rng.choice(rows, len(boxes), replace=False)
    every = np.hstack([rng.uniform(0, SIDE, (rows, 2)), rng.uniform(4, 90, (rows, 2))]).astype(np.float32)
    numbers = (rng.random((rows, columns)) ** 6 * 0.2).astype(np.float32)
    every[places] = boxes
    numbers[places, rng.integers(0, columns, len(places))] = rng.uniform(0, second, len(places))
    numbers[places, classes] = scores
    return every, numbers, places


def smooth(rng, count, height, width):
    """Return (count, height, width) smooth maps, like prototypes of masks."""
    import cv2

    coarse = rng.standard_normal((count, 9, 9)).astype(np.float32)
    return np.stack([cv2.resize(one, (width, height), interpolation=cv2.INTER_CUBIC) for one in coarse])


def corners(boxes):
    """Convert boxes x, y, w, h to x1, y1, x2, y2."""
    return np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2]).astype(np.float32)


def logits(values):
    """Return the logits of scores."""
    values = np.clip(values, 1e-4, 1 - 1e-4)
    return np.log(values / (1 - values)).astype(np.float32)


def answer(boxes, scores, classes, **more):
    return {"boxes": np.asarray(boxes), "scores": np.asarray(scores), "classes": np.asarray(classes), **more}


def alone(path, name, **stubs):
    """Return the module of one file, with the given stubs for other modules."""
    for module, names in stubs.items():
        made = sys.modules.setdefault(module.replace("__", "."), types.ModuleType(module))
        vars(made).update(names)
        made.__path__ = []
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_of(path, *projects, **given):
    """Return the definitions of a project's file, with ``given`` instead of its imports from the project."""
    tree = ast.parse(path.read_text())
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.ImportFrom) or not (node.level or node.module.split(".")[0] in projects)
    ]
    space = {"__name__": f"authors.{path.stem}", **given}
    exec(compile(tree, str(path), "exec"), space)  # the authors' file, from the clone that was named
    return space


def package(name):
    """Return the folder of an installed package without importing it."""
    for folder in map(Path, sys.path):
        if (folder / name / "__init__.py").exists():
            return folder / name
    raise ImportError(f"no package {name}")


# Ultralytics: YOLOv8, 11, 26.


def ultralytics_nms(output, iou=IOU, **more):
    import torch
    from ultralytics.utils.nms import non_max_suppression

    (rows,) = non_max_suppression(torch.tensor(output)[None], SCORE, iou, nc=CLASSES, max_det=LIMIT, **more)
    return rows


def ultralytics_masks(rows, maps):
    import torch
    from ultralytics.utils.ops import process_mask

    masks = process_mask(torch.tensor(maps), rows[:, 6:], rows[:, :4], (SIDE, SIDE), upsample=True)
    keep = masks.amax((-2, -1)) > 0
    rows, masks = rows[keep].numpy(), masks[keep].numpy().astype(bool)
    return answer(rows[:, :4], rows[:, 4], rows[:, 5], masks=np.packbits(masks, axis=-1))


@case("yolov8")
def yolov8(rng):
    boxes, numbers, _ = table(rng, *objects(rng))
    output = np.ascontiguousarray(np.hstack([boxes, numbers]).T)
    rows = ultralytics_nms(output).numpy()
    return [output], answer(rows[:, :4], rows[:, 4], rows[:, 5])


@case("yolov8-seg", iou=0.7)
def yolov8_seg(rng):
    boxes, numbers, _ = table(rng, *objects(rng, 25))
    maps = smooth(rng, 8, SIDE // 4, SIDE // 4)
    output = np.ascontiguousarray(np.hstack([boxes, numbers, rng.standard_normal((CELLS, 8))]).T.astype(np.float32))
    return [output, maps], ultralytics_masks(ultralytics_nms(output, 0.7), maps)


@case("yolov8-obb")
def yolov8_obb(rng):
    boxes, numbers, places = table(rng, *objects(rng))
    angles = np.zeros((CELLS, 1), np.float32)
    angles[places, 0] = np.repeat(rng.uniform(-0.78, 2.3, len(places)), 1) * (rng.random(len(places)) < 0.5)
    output = np.ascontiguousarray(np.hstack([boxes, numbers, angles]).T)
    return [output], ultralytics_oriented(ultralytics_nms(output, rotated=True))


def ultralytics_oriented(rows):
    from ultralytics.utils.ops import xywhr2xyxyxyxy

    points = xywhr2xyxyxyxy(rows[:, [0, 1, 2, 3, 6]]).numpy().reshape(-1, 4, 2)
    hulls = np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1)
    return answer(hulls, rows[:, 4].numpy(), rows[:, 5].numpy(), corners=points)


def final(rng, extra):
    """Return [300, 6 + extra], sorted by falling score as in YOLO26's selection of 300."""
    boxes, scores, classes = objects(rng)
    rows = np.zeros((300, 6 + extra), np.float32)
    count = min(len(scores), 300)
    order = np.argsort(-scores, kind="stable")[:count]
    rows[:count] = np.hstack([boxes, scores[:, None], classes[:, None], rng.standard_normal((len(scores), extra))])[
        order
    ]
    return rows, count


@case("yolov10")
def yolo26(rng):
    output, count = final(rng, 0)
    output[:count, :4] = corners(output[:count, :4])
    rows = ultralytics_nms(output, end2end=True).numpy()
    return [output], answer(rows[:, :4], rows[:, 4], rows[:, 5])


@case("yolov8-seg")
def yolo26_seg(rng):
    output, count = final(rng, 8)
    output[:count, :4] = corners(output[:count, :4])
    maps = smooth(rng, 8, SIDE // 4, SIDE // 4)
    return [output, maps], ultralytics_masks(ultralytics_nms(output, end2end=True), maps)


@case("yolov8-obb")
def yolo26_obb(rng):
    output, _ = final(rng, 1)
    return [output], ultralytics_oriented(ultralytics_nms(output, end2end=True))


# DETR's kin.


def queries(rng, count=300, classes=CLASSES):
    """Return relative boxes, and logits."""
    boxes, numbers, _ = table(rng, *objects(rng, count // 9), count, classes)
    return (boxes / SIDE).astype(np.float32), logits(numbers)


def rt_detr_answer(post, boxes, numbers):
    import torch

    size = torch.tensor([[SIDE, SIDE]])
    (found,) = post({"pred_logits": torch.tensor(numbers)[None], "pred_boxes": torch.tensor(boxes)[None]}, size)
    keep = found["scores"] > SCORE
    return answer(found["boxes"][keep], found["scores"][keep], found["labels"][keep])


def register(*given, **_):
    """Stub of a project's registry."""
    return given[0] if given and isinstance(given[0], type) else lambda kind: kind


@case("detr")
def rt_detr(rng):
    file = OPTIONS.rt_detr / "rtdetr_pytorch/src/zoo/rtdetr/rtdetr_postprocessor.py"
    post = names_of(file, "src", register=register)["RTDETRPostProcessor"](CLASSES, True, LIMIT)
    boxes, numbers = queries(rng)
    return [numbers, boxes], rt_detr_answer(post, boxes, numbers)


def d_fine_post():
    file = OPTIONS.d_fine / "src/zoo/dfine/postprocessor.py"
    return names_of(file, register=register)["DFINEPostProcessor"](CLASSES, True, LIMIT)


@case("detr")
def d_fine(rng):
    boxes, numbers = queries(rng)
    return [boxes, numbers], rt_detr_answer(d_fine_post(), boxes, numbers)


@case("detr")
def d_fine_deployed(rng):
    """Return ``labels``, ``boxes`` and ``scores``, with an image of the network's size."""
    import torch

    boxes, numbers = queries(rng)
    size = torch.tensor([[SIDE, SIDE]])
    given = {"pred_logits": torch.tensor(numbers)[None], "pred_boxes": torch.tensor(boxes)[None]}
    labels, places, scores = (one[0].numpy() for one in d_fine_post().deploy()(given, size))
    keep = scores > SCORE
    return [labels, places, scores], answer(places[keep], scores[keep], labels[keep])


def rf_detr_post():
    import torch

    folder = package("rfdetr")
    if "stable" not in (torch.argsort.__doc__ or ""):  # before torch 1.13
        torch.argsort = lambda values, **how: torch.sort(values, **how)[1]
    core = {"is_compiling": lambda: False}
    box_ops = alone(folder / "utilities/box_ops.py", "rfdetr.utilities.box_ops", rfdetr={}, rfdetr__utilities={},
                    rfdetr__utilities__compiler=core)  # fmt: skip
    names = {"box_ops": box_ops}
    return alone(folder / "models/postprocess.py", "rfdetr.models.postprocess", rfdetr__utilities=names).PostProcess


@case("detr")
def rf_detr(rng):
    boxes, numbers = queries(rng, classes=CLASSES + 1)
    return [boxes, numbers], rt_detr_answer(rf_detr_post()(num_select=LIMIT), boxes, numbers)


@case("detr-seg")
def rf_detr_seg(rng):
    import torch

    boxes, numbers = queries(rng, 100)
    maps = smooth(rng, 100, SIDE // 4, SIDE // 4) - np.float32(0.4)
    y, x = np.indices(maps.shape[1:]) / (SIDE / 4)
    far = np.maximum(np.abs(x - boxes[:, :1, None]) - boxes[:, 2:3, None] / 2, np.abs(y - boxes[:, 1:2, None])
                     - boxes[:, 3:, None] / 2)  # fmt: skip
    maps = (maps - 40 * np.maximum(far, 0)).astype(np.float32)  # near its box, as learned ones are
    given = {"pred_logits": numbers, "pred_boxes": boxes, "pred_masks": maps}
    given = {name: torch.tensor(value)[None] for name, value in given.items()}
    (found,) = rf_detr_post()(num_select=LIMIT)(given, torch.tensor([[SIDE, SIDE]]))
    keep = found["scores"] > SCORE
    masks = np.packbits(found["masks"][keep][:, 0].numpy(), axis=-1)
    return [boxes, numbers, maps], answer(found["boxes"][keep], found["scores"][keep], found["labels"][keep],
                                          masks=masks)  # fmt: skip


# Raw heads of YOLOv5 and v7: their own head decodes them, their own suppression follows.


def raw_maps(rng, anchors, decode):
    """Return [3, h, w, 5 + C] for three strides, before the sigmoid."""
    maps = []
    for stride in (8, 16, 32):
        count = SIDE // stride
        one = rng.normal(0, 1, (3, count, count, 5 + CLASSES)).astype(np.float32)
        one[..., 4] -= 7
        hot = rng.random((3, count, count)) < 0.6 * stride / 32 / 8
        one[hot, 4] = rng.uniform(-1, 5, hot.sum())
        one[hot, 5 + rng.integers(0, CLASSES, hot.sum())] = rng.uniform(0, 5, hot.sum())
        maps.append(one)
    return maps


def head_of(kind, anchors):
    """Return a head whose convolutions return their input."""
    import torch

    head = kind(nc=CLASSES, anchors=anchors, ch=(1, 1, 1)).eval()
    head.m = torch.nn.ModuleList(torch.nn.Identity() for _ in range(3))
    for name in ("ia", "im"):
        if hasattr(head, name):
            setattr(head, name, head.m)
    head.stride = torch.tensor([8.0, 16.0, 32.0])
    return head


def raw_answer(head, nms, maps):
    import torch

    flat = [torch.tensor(one).permute(0, 3, 1, 2).reshape(1, -1, *one.shape[1:3]) for one in maps]
    found = head(flat)
    (rows,) = (
        nms(found[0], SCORE, IOU, max_det=LIMIT) if nms.__module__.startswith("yolov5") else nms(found[0], SCORE, IOU)
    )
    rows = rows.detach().numpy()[:LIMIT]
    return answer(rows[:, :4], rows[:, 4], rows[:, 5])


@case("yolo-raw")
def yolov5_raw(rng):
    from yolov5.models.yolo import Detect
    from yolov5.utils.general import non_max_suppression

    anchors = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))
    head = head_of(Detect, anchors)
    head.anchors /= head.stride.view(-1, 1, 1)
    maps = raw_maps(rng, anchors, None)
    return maps, raw_answer(head, non_max_suppression, maps)


@case("yolo-raw", anchors="yolov7")
def yolov7_raw(rng):
    from sas_yolov7.models.yolo import Detect
    from sas_yolov7.utils.general import non_max_suppression

    anchors = ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401))
    maps = raw_maps(rng, anchors, None)
    found = raw_answer(head_of(Detect, anchors), non_max_suppression, maps)
    flat = [one.transpose(0, 3, 1, 2).reshape(-1, *one.shape[1:3]) for one in maps]  # as the convolutions write them
    return [np.ascontiguousarray(one) for one in flat], found


@case("yolov5")
def yolov5(rng):
    import torch
    from yolov5.utils.general import non_max_suppression

    boxes, numbers, places = table(rng, *objects(rng))
    output = np.hstack([boxes, np.full((CELLS, 1), 0.02), numbers]).astype(np.float32)
    output[places, 4] = rng.uniform(0.5, 1, len(places))
    (rows,) = non_max_suppression(torch.tensor(output)[None], SCORE, IOU, max_det=LIMIT)
    return [output], answer(rows[:, :4], rows[:, 4], rows[:, 5])


# YOLOX and NanoDet-Plus, decoded and suppressed by their own heads.


@case("yolox")
def yolox(rng):
    import torch

    def meshgrid(tensors):
        return torch.meshgrid(*tensors, indexing="ij")

    head = names_of(OPTIONS.yolox / "yolox/models/yolo_head.py", "yolox", "loguru", meshgrid=meshgrid)["YOLOXHead"]
    post = names_of(OPTIONS.yolox / "yolox/utils/boxes.py")["postprocess"]
    boxes, numbers, places = table(rng, *objects(rng))
    y, x, stride = np.hstack([(*np.indices((SIDE // s, SIDE // s)).reshape(2, -1), np.full((SIDE // s) ** 2, s))
                              for s in (8, 16, 32)])  # fmt: skip
    output = np.hstack([boxes, np.full((CELLS, 1), 0.02), numbers]).astype(np.float32)
    output[:, :2] = output[:, :2] / stride[:, None] - np.stack([x, y], axis=1)
    output[:, 2:4] = np.log(output[:, 2:4] / stride[:, None])
    output[places, 4] = rng.uniform(0.5, 1, len(places))
    facts = types.SimpleNamespace(hw=[(SIDE // s, SIDE // s) for s in (8, 16, 32)], strides=[8, 16, 32])
    decoded = head.decode_outputs(facts, torch.tensor(output)[None], torch.FloatTensor)
    (rows,) = post(decoded, CLASSES, SCORE, IOU)
    rows = np.zeros((0, 7), np.float32) if rows is None else rows.numpy()
    return [output], answer(rows[:, :4], rows[:, 4] * rows[:, 5], rows[:, 6])


@case("nanodet", iou=0.6)
def nanodet_plus(rng):
    import torch

    root = OPTIONS.nanodet / "nanodet"
    nms = names_of(root / "model/module/nms.py")["multiclass_nms"]
    integral = names_of(root / "model/head/gfl_head.py", "nanodet")["Integral"](7)
    distance = names_of(root / "util/box_transform.py")["distance2bbox"]
    kind = names_of(root / "model/head/nanodet_plus_head.py", "nanodet", multiclass_nms=nms, distance2bbox=distance)[
        "NanoDetPlusHead"
    ]
    strides = (8, 16, 32, 64)
    facts = types.SimpleNamespace(strides=strides, distribution_project=integral)
    facts.get_single_level_center_priors = lambda *args, **more: kind.get_single_level_center_priors(
        facts, *args, **more
    )
    _, scores, _ = table(rng, *objects(rng, 12), sum((SIDE // stride) ** 2 for stride in strides), second=0.6)
    sides = (rng.standard_normal((len(scores), 32)) * 2).astype(np.float32)
    one = torch.tensor(logits(scores))[None], torch.tensor(sides)[None], {"img": np.zeros((1, 3, SIDE, SIDE))}
    ((boxes, kinds),) = kind.get_bboxes(facts, *one)
    keep = boxes[:, 4] > SCORE
    final = 1 / (1 + np.exp(-logits(scores)))
    return [np.hstack([final, sides])], answer(boxes[keep, :4], boxes[keep, 4], kinds[keep])


@case("yolo-nas", iou=0.7)
def yolo_nas(rng):
    import torch

    names = {"DetectionPostPredictionCallback": torch.nn.Module}
    file = package("super_gradients") / "training/models/detection_models/pp_yolo_e/post_prediction_callback.py"
    stubs = {"super_gradients": {}, "super_gradients__training": {}, "super_gradients__training__utils": {}}
    module = alone(file, "authors.nas", **stubs, super_gradients__training__utils__detection_utils=names)
    post = module.PPYoloEPostPredictionCallback(
        score_threshold=SCORE, nms_threshold=0.7, nms_top_k=1000, max_predictions=LIMIT
    )
    boxes, numbers, _ = table(rng, *objects(rng), second=0.6)
    boxes = corners(boxes)
    (rows,) = post((torch.tensor(boxes)[None], torch.tensor(numbers)[None]))
    rows = rows.numpy()
    return [boxes, numbers], answer(rows[:, :4], rows[:, 4], rows[:, 5])


# PaddleDetection.


def paddle_head(**more):
    from ppdet.modeling.heads.ppyoloe_head import PPYOLOEHead
    from ppdet.modeling.layers import MultiClassNMS

    nms = MultiClassNMS(SCORE, nms_top_k=1000, keep_top_k=LIMIT, nms_threshold=0.7)
    return PPYOLOEHead(in_channels=[8, 8, 8], num_classes=CLASSES, nms=nms, **more)


def paddle_answer(rng):
    """Return the head's results for distances and scores of every cell, before and after NMS."""
    import paddle

    boxes, numbers, _ = table(rng, *objects(rng), second=0.6)
    boxes = corners(boxes)
    one = [paddle.to_tensor(boxes)[None], paddle.to_tensor(np.ascontiguousarray(numbers.T))[None]]
    found, count, *_ = paddle_head().nms(*one)
    rows = found.numpy()[: int(count.numpy()[0])]
    order = np.argsort(-rows[:, 1], kind="stable")
    return boxes, numbers, rows, answer(rows[order, 2:], rows[order, 1], rows[order, 0])


@case("ppyoloe", iou=0.7)
def ppyoloe(rng):
    boxes, numbers, _, found = paddle_answer(rng)
    return [boxes, np.ascontiguousarray(numbers.T)], found


@case("ppyoloe", iou=0.7)
def ppyoloe_final(rng):
    _, _, rows, found = paddle_answer(rng)
    padded = np.zeros((LIMIT, 6), np.float32)
    padded[:, 0] = -1
    padded[: len(rows)] = rows
    return [padded, np.array([len(rows)], np.int32)], found


# NVIDIA TAO.


@case("detectnet", iou=0.3)
def detectnet(rng):
    import copy

    folder = package("nvidia_tao_deploy") / "cv/detectnet_v2"
    parents = ("nvidia_tao_deploy", "nvidia_tao_deploy__cv", "nvidia_tao_deploy__cv__detectnet_v2")
    utils = alone(folder / "utils.py", "nvidia_tao_deploy.cv.detectnet_v2.utils", **{one: {} for one in parents})
    sys.modules["nvidia_tao_deploy.cv.detectnet_v2.utils"] = utils
    module = alone(folder / "postprocessor.py", "authors.detectnet")
    names = [f"class{index}" for index in range(3)]
    cluster = UserDict(clustering_algorithm=1, nms_iou_threshold=0.3, nms_confidence_threshold=SCORE, dbscan_eps=0.1)
    cluster.update(dbscan_min_samples=1, coverage_threshold=0.005, minimum_bounding_box_height=0)
    cluster.update(dbscan_confidence_threshold=0.1)
    params = types.SimpleNamespace(clustering_config=types.SimpleNamespace(**cluster))
    module.logger.setLevel("ERROR")
    handler = module.BboxHandler(
        frame_height=SIDE, frame_width=SIDE, target_classes=names, classwise_cluster_params={"default": params}
    )
    boxes, scores, classes = objects(rng, 20)
    classes, count = classes % 3, SIDE // 16
    coverage = (rng.random((3, count, count)) ** 6 * 0.2).astype(np.float32)
    sides = rng.uniform(-0.2, 1, (12, count, count)).astype(np.float32)
    column, row = np.clip(boxes[:, :2] // 16, 0, count - 1).astype(int).T
    coverage[classes, row, column] = scores
    middle = np.stack([column, row], axis=1) * 16 + 0.5
    ends = corners(boxes)
    sides.reshape(3, 4, count, count)[classes, :, row, column] = (
        np.hstack([middle - ends[:, :2], ends[:, 2:] - middle]) / 35
    )
    given = {
        name: {
            "cov": coverage[None, index].transpose(0, 2, 1).copy(),
            "bbox": sides[None, 4 * index : 4 * index + 4].transpose(0, 1, 3, 2).copy(),
        }
        for index, name in enumerate(names)
    }
    found = handler.cluster_detections(handler.bbox_preprocessing(copy.deepcopy(given)))
    kinds = {name: index for index, name in enumerate(names)}
    (rows,) = handler.postprocess(found, 1, [(SIDE, SIDE)], (SIDE, SIDE), kinds)
    # get_keep_indices sorts the coverages that it was given, so that boxes come out with those of other cells: the
    # coverage of a box's own cell is looked up by its place.
    rows = rows[rows[:, 2:].any(axis=1)]
    own = handler.abs_bbox_converter(sides.reshape(3, 4, count, count).transpose(0, 1, 3, 2).copy())
    own = np.clip(own, 0, SIDE).reshape(3, 4, -1)[rows[:, 0].astype(int)]
    cell = np.abs(own - rows[:, 2:, None]).sum(axis=1).argmin(axis=1)
    scores = coverage.transpose(0, 2, 1).reshape(3, -1)[rows[:, 0].astype(int), cell]
    order = np.argsort(-scores, kind="stable")
    return [coverage, sides], answer(rows[order, 2:], scores[order], rows[order, 0])


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--rt-detr", type=Path, default=Path("RT-DETR"))
    parser.add_argument("--d-fine", type=Path, default=Path("D-FINE"))
    parser.add_argument("--yolox", type=Path, default=Path("YOLOX"))
    parser.add_argument("--nanodet", type=Path, default=Path("nanodet"))
    parser.add_argument("--only", nargs="*")
    OPTIONS = parser.parse_args()
    OPTIONS.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    for name in OPTIONS.only or CASES:
        function, facts = CASES[name]
        arrays = {"facts": np.array(json.dumps({**facts, "score": SCORE, "limit": LIMIT, "side": SIDE}))}
        try:
            for index in range(OPTIONS.count):
                outputs, found = function(np.random.default_rng([index, len(name)]))
                arrays |= {f"{index}/output{which}": output for which, output in enumerate(outputs)}
                arrays |= {f"{index}/{key}": np.asarray(value) for key, value in found.items()}
        except (ImportError, FileNotFoundError) as error:
            print(f"{name:16}left out: {error}")
            continue
        np.savez_compressed(OPTIONS.folder / f"{name}.npz", **arrays)
        print(f"{name:16}{OPTIONS.count} outputs")


if __name__ == "__main__":
    main()
