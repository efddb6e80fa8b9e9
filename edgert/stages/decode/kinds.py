"""The decoders of each task, imported when a model is read with one: name → ``module:Class``.

A decoder is a frozen dataclass. Fields that are called like a key of the task's section get its value, ``labels`` and
``label_count`` what the labels file holds, and all others are the task's ``options``.
"""

from __future__ import annotations

_HERE = "edgert.stages.decode"

DETECT = {
    "yolox": f"{_HERE}.yolox:YoloX",
    "yolov5": f"{_HERE}.yolov5:YoloV5",
    "yolov8": f"{_HERE}.yolov8:YoloV8",
    "yolov10": f"{_HERE}.decoded:Decoded",
    "nanodet": f"{_HERE}.nanodet:NanoDet",
    "ssd": f"{_HERE}.ssd:Ssd",
    "fastestdet": f"{_HERE}.fastestdet:FastestDet",
    "detr": f"{_HERE}.detr:Detr",
}
CLASSIFY = dict.fromkeys(("auto", "softmax", "logits"), f"{_HERE}.classify:Classify")
SEGMENT = {"argmax": f"{_HERE}.segment:SegmentArgmax", "threshold": f"{_HERE}.segment:SegmentThreshold"}
KEYPOINTS = {"yolo-pose": f"{_HERE}.yolo_pose:YoloPose", "heatmap": f"{_HERE}.heatmap:Heatmap"}
EMBED = dict.fromkeys(("l2", "none"), f"{_HERE}.embed:Embed")
