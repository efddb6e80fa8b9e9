"""Names of settings in other tools, and the key of each in a pipeline file."""

from collections.abc import Mapping, Sequence
from typing import Any

_SCORE, _IOU, _SIZE = "models.NAME.task.score", "models.NAME.task.iou", "models.NAME.input.size"
_GPU = "the environment variable CUDA_VISIBLE_DEVICES (one edgert for each GPU)"
_NAMES = "models.NAME.task.labels (a file of names, or coco); what is counted, cropped or sent is chosen by classes:"
_REPLACEMENTS = {
    **dict.fromkeys(("conf", "confidence", "conf_thres", "conf_threshold", "conf_thresh"), _SCORE),
    **dict.fromkeys(("threshold", "thresh", "min_confidence", "score_threshold", "score_thres", "min_score"), _SCORE),
    **dict.fromkeys(("score", "confidence_threshold", "detection_threshold"), _SCORE),
    **dict.fromkeys(
        ("iou", "iou_thres", "iou_threshold", "nms", "nms_threshold", "nms_iou", "nms_iou_threshold"), _IOU
    ),
    **dict.fromkeys(("imgsz", "img_size", "image_size", "input_size", "network_size", "resolution"), _SIZE),
    **dict.fromkeys(("classes", "names", "class_names", "labels", "label_file", "labels_file"), _NAMES),
    **dict.fromkeys(("max_det", "max_detections", "topk"), "models.NAME.task.limit"),
    **dict.fromkeys(("agnostic_nms", "class_agnostic"), "models.NAME.task.agnostic"),
    **dict.fromkeys(("weights", "checkpoint", "model_path", "onnx_path"), "models.NAME.onnx"),
    **dict.fromkeys(("half", "fp16", "int8", "dtype"), "models.NAME.precision (fp32, fp16 or int8)"),
    **dict.fromkeys(("provider", "providers", "backend", "execution_provider"), "engines"),
    "device": f"engines, or {_GPU}",
    **dict.fromkeys(("gpus", "gpu_id", "gpu_ids", "device_id"), _GPU),
    **dict.fromkeys(("tracker", "tracking"), "a stage of its own, {track: bytetrack, from: STAGE}"),
    **dict.fromkeys(("width", "height", "frame_size"), "size (1280x720) of the stage that has source:"),
    **dict.fromkeys(("framerate", "frame_rate", "rate"), "fps of the stage that has source:"),
    **dict.fromkeys(("url", "uri", "src", "video", "camera", "stream"), "source of a stage"),
    **dict.fromkeys(("output", "outputs", "dest", "filename"), "path of a stage that has sink:"),
    **dict.fromkeys(("mean_values", "normalize", "std_values"), "models.NAME.input.mean and std"),
    **dict.fromkeys(("skip", "skip_frames", "vid_stride", "stride", "interval"), "every of the stage that has infer:"),
    **dict.fromkeys(("batch_size", "batch"), "batch of the stage that has infer:"),
}


def replacement_for(key: str, above: Sequence[str | int], data: Mapping[str, Any]) -> str:
    """Return the place in a pipeline file for another tool's key, as ``conf is models.parts.task.score``.

    It is empty for a key that is not known of another tool. ``above`` is the key path of its section.
    """
    place = _REPLACEMENTS.get(key.lower().replace("-", "_"), "")
    models = data.get("models")
    known = [str(name) for name in models] if isinstance(models, Mapping) else []
    own = str(above[1]) if len(above) > 1 and above[0] == "models" else known[0] if len(known) == 1 else "NAME"
    return f"{key} is {place.replace('NAME', own)}" if place else ""
