"""Settings that exporters declare, in a model's metadata and in files beside it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from edgert import limits
from edgert.errors import ConfigError
from edgert.graph import Model
from edgert.graph.metadata import characters, class_names, literal, metadata_of
from edgert.text_files import read_text
from edgert.units import whole_number
from edgert.wiring.head_activation import contradicted_decoders

_LARGEST_FILE_BYTES = 2**20  # no exporter writes a larger file beside a model
_NOT_OF_AN_EXPORTER = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, yaml.YAMLError,
)  # fmt: skip
"""Errors of reading a file that has an exporter's file name, but other content."""


@dataclass(frozen=True, slots=True)
class DeclaredSettings:
    """Settings that a model's file, and its exporter's files beside it, declare.

    Attributes:
        metadata: metadata of the model file.
        producer: name of the exporter.
        input: declared keys of ``input:``.
        labels: names of the classes, or characters of a text model.
        size: network size, (width, height).
        source: place where ``input`` is declared, in words.
        named_beside: whether ``labels`` are in a file beside the model, and not in the model file.
        denied: decoders that the end of the graph contradicts, as ``detect: yolov8``.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""
    input: Mapping[str, object] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    source: str = ""
    named_beside: bool = False
    denied: frozenset[str] = frozenset()


def declared_settings(model: Model) -> DeclaredSettings:
    """Return the settings in a model's metadata and the files beside it."""
    metadata = metadata_of(model.path)
    labels, size = class_names(metadata) or characters(metadata), _parse_imgsz(metadata.get("imgsz", ""))
    denied = contradicted_decoders(model)
    found = DeclaredSettings(metadata, model.proto.producer_name, labels=labels, size=size, denied=denied)
    if stated := _read_model_api(metadata):
        return _add_declared(found, stated, "the metadata of its exporter")
    with suppress(*_NOT_OF_AN_EXPORTER):
        if not labels and (beside := _class_names_beside(model.path)):
            found = replace(found, labels=beside, named_beside=True)
    for name, read in _READERS:
        path = model.path.with_name(name)
        with suppress(*_NOT_OF_AN_EXPORTER):
            if (text := _read_text(path)) is not None and (stated := read(text)):
                return _add_declared(found, stated, f"{name} beside it")
    return found


def _add_declared(declared: DeclaredSettings, stated: Mapping[str, Any], source: str) -> DeclaredSettings:
    own = {key: value for key, value in stated.items() if key not in ("labels", "size")}
    if not declared.labels and stated.get("labels"):
        declared = replace(declared, labels=tuple(stated["labels"]), named_beside=True)
    return replace(declared, input=own, size=declared.size or stated.get("size"), source=source)


def _parse_imgsz(text: str) -> tuple[int, int] | None:
    """Return (width, height) of Ultralytics' imgsz, which is one number or [height, width]; None for anything else."""
    found = literal(text)
    numbers = [found] * 2 if isinstance(found, int) else found
    if not isinstance(numbers, (list, tuple)) or len(numbers) != 2:
        return None
    is_usable = all(isinstance(n, int) and 0 < n <= limits.DIMENSION for n in numbers)
    return (numbers[1], numbers[0]) if is_usable else None


def _read_model_api(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the input keys in metadata of Training Extensions and OpenVINO's Model API.

    Mean and scale are gray levels, in the order of the input's channels. See the model configuration in
    https://github.com/open-edge-platform/model_api.
    """
    given = {key.removeprefix("model_info "): text for key, text in metadata.items() if key.startswith("model_info ")}
    mean, std = (_as_floats(given.get(key, "").split()) for key in ("mean_values", "scale_values"))
    if mean is None or std is None or not {"mean_values", "scale_values"} & given.keys():
        return {}
    ways: dict[str, dict[str, Any]] = {
        "crop": {"resize": "center_crop", "crop": 1.0},
        "standard": {"resize": "stretch"},
        "fit_to_window": {"resize": "letterbox", "anchor": "top_left"},
        "fit_to_window_letterbox": {"resize": "letterbox", "anchor": "center"},
    }
    found: dict[str, Any] = {"mean": mean or (0.0,), "std": std or (1.0,), **ways.get(given.get("resize_type", ""), {})}
    if "reverse_input_channels" in given:  # Model API reads images as BGR
        found["color"] = "rgb" if given["reverse_input_channels"].lower() in ("true", "yes", "1") else "bgr"
    if found.get("resize") == "letterbox" and (pad := whole_number(given.get("pad_value", ""))) is not None:
        found["pad"] = min(pad, 255)
    return found


def _read_hugging_face(text: str) -> dict[str, Any]:
    """Return the input keys of a preprocessor_config.json.

    https://huggingface.co/docs/transformers/main_classes/image_processor.
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        return {}
    scale = data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1.0
    mean, std = (_as_floats(data.get(key)) for key in ("image_mean", "image_std"))
    if not data.get("do_normalize", True) or not mean or not std:
        mean, std = (0.0,), (1.0,)
    if not isinstance(scale, (int, float)) or scale <= 0:
        return {}
    found: dict[str, Any] = {"color": "rgb", "mean": tuple(round(value / scale, 4) for value in mean)}
    found["std"] = tuple(round(value / scale, 4) for value in std)
    size = data.get("crop_size") if data.get("do_center_crop") else data.get("size")
    if data.get("do_center_crop"):
        whole = data.get("size")
        edge = whole.get("shortest_edge") if isinstance(whole, dict) else whole
        side = size.get("height") if isinstance(size, dict) else size
        part = side / edge if isinstance(side, int) and isinstance(edge, int) and edge > 0 else 1.0
        found |= {"resize": "center_crop", "crop": round(min(part, 1.0), 4)}
    elif isinstance(size, int) or (isinstance(size, dict) and {"height", "width"} <= set(size)):
        found["resize"] = "stretch"
    if isinstance(size, dict) and all(isinstance(size.get(key), int) for key in ("height", "width")):
        found["size"] = (size["width"], size["height"])
    return found


def _read_timm(text: str) -> dict[str, Any]:
    """Return the input keys of a timm model's config.json (https://huggingface.co/docs/timm/hf_hub)."""
    data = json.loads(text)
    known = data.get("pretrained_cfg") if isinstance(data, dict) else None
    mean, std = (_as_floats(known.get(key)) for key in ("mean", "std")) if isinstance(known, dict) else (None, None)
    if not isinstance(known, dict) or not mean or not std:
        return {}
    gray_levels = {"mean": tuple(round(255 * v, 4) for v in mean), "std": tuple(round(255 * v, 4) for v in std)}
    found: dict[str, Any] = {"color": "rgb", **gray_levels, "labels": known.get("label_names") or ()}
    if known.get("crop_mode") == "squash":
        return {**found, "resize": "stretch"}
    part = known.get("crop_pct")
    if isinstance(part, (int, float)) and 0 < part <= 1 and known.get("crop_mode", "center") == "center":
        found |= {"resize": "center_crop", "crop": float(part)}
    return found


def _read_roboflow(text: str) -> dict[str, Any]:
    """Return the input keys of Roboflow's inference_config.json (https://github.com/roboflow/inference)."""
    known = json.loads(text)["network_input"]
    scale, normalized = known.get("scaling_factor") or 1.0, known.get("normalization") or ((0.0,), (1.0,))
    mean, std = (_as_floats(one) for one in normalized)
    ways: dict[str, dict[str, Any]] = {
        "stretch": {"resize": "stretch"},
        "letterbox": {"resize": "letterbox", "anchor": "center", "pad": known.get("padding_value") or 0},
        "center-crop": {"resize": "center_crop", "crop": 1.0},
    }
    if not mean or not std or known.get("color_mode") not in ("rgb", "bgr"):
        return {}
    found = {"mean": tuple(round(scale * v, 4) for v in mean), "std": tuple(round(scale * v, 4) for v in std)}
    size = known.get("training_input_size") or {}
    if all(isinstance(size.get(key), int) for key in ("height", "width")):
        found["size"] = (size["width"], size["height"])
    return {"color": known["color_mode"], **found, **ways.get(known.get("resize_mode", ""), {})}


def _read_paddle(text: str) -> dict[str, Any]:
    """Return the input keys of PaddleX's and PaddleOCR's inference.yml, or PaddleDetection's infer_cfg.yml.

    See deploy/python/preprocess.py of PaddleDetection.
    """
    data = yaml.safe_load(text)
    if not isinstance(data, dict):
        return {}
    steps = data.get("PreProcess") or data.get("Preprocess") or []
    steps = steps.get("transform_ops", []) if isinstance(steps, dict) else steps
    found: dict[str, Any] = {}
    for step in steps if isinstance(steps, list) else []:
        if not isinstance(step, dict):
            continue
        kind = step.get("type")
        name, values = (kind, step) if isinstance(kind, str) else next(iter(step.items()), ("", {}))
        values = values if isinstance(values, dict) else {}
        if name in ("NormalizeImage", "Normalize"):
            mean, std = (_as_floats(values.get(key)) for key in ("mean", "std"))
            factor = 255.0 if values.get("is_scale", True) else 1.0
            if values.get("norm_type") == "none":
                mean, std = (0.0,), (1.0,)
            if mean and std:
                found |= {
                    "mean": tuple(round(v * factor, 4) for v in mean),
                    "std": tuple(round(v * factor, 4) for v in std),
                }
        elif name == "DecodeImage" and str(values.get("img_mode", "")).lower() in ("rgb", "bgr"):
            found["color"] = values["img_mode"].lower()
        elif name == "Resize" and "keep_ratio" in values:  # PaddleDetection, whose images are RGB
            found |= {"resize": "letterbox", "anchor": "top_left"} if values["keep_ratio"] else {"resize": "stretch"}
            found.setdefault("color", "rgb")
    if "mean" not in found:
        return {}
    names = data.get("label_list")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        found["labels"] = names
    return found


def _read_deepstream(text: str) -> dict[str, Any]:
    """Return the input keys of TAO's nvinfer_config.txt.

    https://docs.nvidia.com/metropolis/deepstream/dev-guide, Gst-nvinfer.
    """
    pairs = (line.partition("#")[0].partition("=") for line in text.splitlines())
    given = {key.strip(): value.strip() for key, _, value in pairs}
    (factor,) = _as_floats([given.get("net-scale-factor", "")]) or (0.0,)
    mean = _as_floats(given.get("offsets", "0").split(";"))
    if factor <= 0 or mean is None:
        return {}
    found: dict[str, Any] = {"std": (round(1 / factor, 4),), "mean": mean}
    if color := {"0": "rgb", "1": "bgr"}.get(given.get("model-color-format", "0")):
        found["color"] = color
    if given.get("maintain-aspect-ratio") != "1":
        return {**found, "resize": "stretch"}
    anchor = "center" if given.get("symmetric-padding") == "1" else "top_left"
    return {**found, "resize": "letterbox", "anchor": anchor, "pad": 0}


_READERS = (
    ("inference_config.json", _read_roboflow),
    ("preprocessor_config.json", _read_hugging_face),
    ("config.json", _read_timm),
    ("inference.yml", _read_paddle),
    ("infer_cfg.yml", _read_paddle),
    ("nvinfer_config.txt", _read_deepstream),
)


def _class_names_beside(path: Path) -> tuple[str, ...]:
    """Return the class names of Roboflow's class_names.txt, or of ``id2label`` in a config.json of transformers."""
    text = _read_text(path.with_name("class_names.txt"))
    if text is not None and path.with_name("inference_config.json").exists():
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    data = json.loads(_read_text(path.with_name("config.json")) or "{}")
    return class_names({"names": json.dumps(data["id2label"])}) if isinstance(data, dict) and "id2label" in data else ()


def _read_text(path: Path) -> str | None:
    try:
        return read_text(path, _LARGEST_FILE_BYTES)
    except (OSError, ConfigError):  # there is no such file, or it is too large or not text
        return None


def _as_floats(found: object) -> tuple[float, ...] | None:
    """Return a list of numbers or texts of numbers as floats, without empty texts; None for anything else."""
    if not isinstance(found, (list, tuple)):
        return None
    try:
        return tuple(float(one) for one in found if one != "")
    except (TypeError, ValueError, OverflowError):
        return None
