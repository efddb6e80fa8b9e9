"""The decoders of each task, imported when a model is read with one: name → ``module:Class``.

A decoder is a frozen dataclass. Fields that are called like a key of the task's section get its value, ``labels`` and
``label_count`` what the labels file holds, and all others are the task's ``options``.
"""

from __future__ import annotations

DETECT = {
    "yolox": "edgert.stages.decode.yolo:YoloX",
    "yolov5": "edgert.stages.decode.yolo:YoloV5",
    "yolov8": "edgert.stages.decode.yolo:YoloV8",
    "yolov10": "edgert.stages.decode.decoded:Decoded",
    "nanodet": "edgert.stages.decode.nanodet:NanoDet",
    "ssd": "edgert.stages.decode.decoded:Ssd",
    "fastestdet": "edgert.stages.decode.nanodet:FastestDet",
    "detr": "edgert.stages.decode.detr:Detr",
}
CLASSIFY = dict.fromkeys(("auto", "softmax", "logits"), "edgert.stages.decode.classify:Classify")
SEGMENT = {
    "argmax": "edgert.stages.decode.segmentation:SegmentArgmax",
    "threshold": "edgert.stages.decode.segmentation:SegmentThreshold",
}
KEYPOINTS = {"yolo-pose": "edgert.stages.decode.yolo:YoloPose", "heatmap": "edgert.stages.decode.heatmap:Heatmap"}
EMBED = dict.fromkeys(("l2", "none"), "edgert.stages.decode.classify:Embed")
