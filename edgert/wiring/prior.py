"""What is known of a model before it runs: what its exporter wrote down, and how its family is fed and read."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from edgert.config import InputConfig, TaskConfig
from edgert.config.model_section import value_of, verb_of
from edgert.graph import Model
from edgert.graph.metadata import class_names, literal, metadata_of
from edgert.wiring.families import FAMILIES, PLACED, Family
from edgert.wiring.settings import GROUPS, Setting, differs

FILE, FAMILY, USUAL = 5.0, 3.0, 1.0
"""Standard errors by which photos must speak against what the model's file says, against what its family's own code
does, and against what is only usual for models of its kind, before they are believed."""
_SIDE_BYTES = 2**20  # of a file beside the model; more is none that an exporter writes


@dataclass(frozen=True, slots=True)
class Told:
    """What a model's file, and those that its exporter puts beside it, say of it.

    Attributes:
        metadata: key → value.
        producer: the exporter's name.
        input: keys of ``input:`` that are stated, not guessed.
        labels: names of the classes.
        size: network size, (width, height).
        source: where ``input`` stands, in words.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""
    input: Mapping[str, object] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Prior:
    """How a model is probably fed and read, and how much speaks for it.

    Attributes:
        told: by its file.
        family: whose code is known; None where none fits.
        input: keys of ``input:`` that are known.
        margin: standard errors by which photos must speak against it.
        placed: the same for how images are placed, where that is firmer.
        source: why, in words.
    """

    told: Told = Told()
    family: Family | None = None
    input: Mapping[str, object] = field(default_factory=dict)
    margin: float = 0.0
    placed: float = 0.0
    source: str = ""

    def applied(self, base: InputConfig) -> InputConfig:
        """An input as it would be by what is known; all else as ``base`` has it."""
        return base.model_copy(update=dict(self.input))

    def against(self, setting: Setting) -> float:
        """Standard errors that stand against a setting: the margin for each of color, scale and placement in which it
        is not what is known."""
        expected = Setting(self.applied(setting.input), setting.task)
        margins = {"placement": max(self.margin, self.placed)}
        return sum(margins.get(group, self.margin) for group in GROUPS if differs(setting, expected, group))

    def taken(self, base: InputConfig, dtype: str) -> "Prior":
        """What of it holds for an input like this: gray has no order of colors, integers have scales of their own."""
        left_out = {"color", "mean", "std"} if base.color == "gray" else {"mean", "std"} if "int" in dtype else set()
        known = {key: value for key, value in self.input.items() if key not in left_out}
        return self if known == self.input else replace(self, input=known)


def told_of(model: Model) -> Told:
    """Reads a model's metadata and the files beside it."""
    metadata = metadata_of(model.path)
    found = Told(
        metadata, model.proto.producer_name, labels=class_names(metadata), size=_size(metadata.get("imgsz", ""))
    )
    if stated := _model_api(metadata):
        return _with(found, stated, "the metadata of its exporter")
    for name, read in _BESIDE:
        path = model.path.with_name(name)
        with suppress(ValueError, TypeError, AttributeError, yaml.YAMLError):  # one that no exporter wrote
            if (text := _text(path)) is not None and (stated := read(text)):
                return _with(found, stated, f"{name} beside it")
    return found


def told_task(told: Told) -> str:
    """The decoder that the file's ``task`` means to its exporter, like ``detect: yolov8``; empty where it says none."""
    task, is_final = told.metadata.get("task", ""), literal(told.metadata.get("end2end", "False"))
    tables = (family.tasks for family in FAMILIES if _by_metadata(family, told))
    decoder = next((table[task] for table in tables if task in table), "")
    return "detect: yolov10" if decoder == "detect: yolov8" and is_final is True else decoder


def named_family(inputs: Sequence[str], outputs: Sequence[str]) -> Family | None:
    """The family whose exporter names inputs and outputs so."""
    names = " ".join(outputs).lower()
    for family in FAMILIES:
        is_named = family.gives and not set(family.takes).isdisjoint(inputs)
        if is_named and family.reads and all(part in names for part in family.gives):
            return family
    return None


def prior_of(
    told: Told, task: TaskConfig, inputs: Sequence[str], outputs: Sequence[str], length: int = 0, tall: bool = False
) -> Prior:
    """What is known of a model that is read by a task.

    Args:
        inputs, outputs: their names.
        length: how many numbers its one output holds for an image; 0 where there are more outputs or that is open.
        tall: whether its input is twice as high as wide, as people are.
    """
    found = _of_family(told, task, inputs, outputs)
    for family in PLACED:
        fits = _decoder(task) in family.reads and length in family.lengths and (tall or "embed: l2" not in family.reads)
        if fits and found.margin < FAMILY and "resize" not in told.input:
            known = {**found.input, **family.input}
            source = found.source or f"it is one of the {family.name}, placed as in {family.source}"
            return replace(found, input=known, placed=FAMILY, source=source)
    return found


def _of_family(told: Told, task: TaskConfig, inputs: Sequence[str], outputs: Sequence[str]) -> Prior:
    decoder, ranked = _decoder(task), list[tuple[float, bool, int, Family | None]]()
    names = " ".join(outputs).lower()
    for place, family in enumerate(FAMILIES):
        by_file = bool(family.metadata) and _by_metadata(family, told)
        marked = bool(family.producer or family.gives)
        named = told.producer.startswith(family.producer) and all(part in names for part in family.gives)
        named = named and (not family.takes or not set(family.takes).isdisjoint(inputs))
        own = decoder.startswith(("detect", "keypoints"))  # others are outputs that anybody could have made
        if decoder in family.reads and (by_file or (named if marked else own)):
            weight = FILE if by_file else FAMILY if not marked or family.gives else USUAL
            ranked.append((weight, bool(family.gives), -place, family))
    margin, *_, best = max(ranked, default=(0.0, False, 0, None), key=lambda one: one[:3])
    known = {**(best.input if best else {}), **told.input}
    if told.input:
        return Prior(told, best, _valid(known), FILE, source=told.source)
    if best is None:
        return Prior(told)
    said = {FILE: "the file is one of", FAMILY: "its outputs are those of", USUAL: "its exporter is the usual one of"}
    return Prior(told, best, known, margin, source=f"{said[margin]} {best.name}, fed as in {best.source}")


def _by_metadata(family: Family, told: Told) -> bool:
    return bool(family.metadata) and all(
        key in told.metadata and text in told.metadata[key] for key, text in family.metadata.items()
    )


def _decoder(task: TaskConfig) -> str:
    verb = verb_of(task)
    return {"classify": "classify: auto", "embed": "embed: l2"}.get(verb, f"{verb}: {value_of(task)}")


def _valid(known: Mapping[str, object]) -> dict[str, object]:
    """The keys that make sense together; none where they do not, so that a strange file is no error."""
    try:
        InputConfig.model_validate(known)
    except ValidationError:
        return {}
    return dict(known)


# What exporters write down.


def _with(told: Told, stated: Mapping[str, Any], source: str) -> Told:
    own = {key: value for key, value in stated.items() if key not in ("labels", "size")}
    labels = told.labels or tuple(stated.get("labels", ()))
    return Told(told.metadata, told.producer, own, labels, told.size or stated.get("size"), source)


def _size(text: str) -> tuple[int, int] | None:
    """Ultralytics' imgsz: one number, or [height, width]."""
    found = literal(text)
    numbers = [found] * 2 if isinstance(found, int) else found
    if isinstance(numbers, (list, tuple)) and len(numbers) == 2 and all(isinstance(n, int) and n > 0 for n in numbers):
        return numbers[1], numbers[0]
    return None


def _model_api(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Training Extensions and all that OpenVINO's Model API reads: gray levels, in the order of the image's channels.

    https://github.com/open-edge-platform/model_api, docs on the model configuration.
    """
    given = {key.removeprefix("model_info "): text for key, text in metadata.items() if key.startswith("model_info ")}
    mean, std = (_numbers(given.get(key, "").split()) for key in ("mean_values", "scale_values"))
    if mean is None or std is None or not {"mean_values", "scale_values"} & given.keys():
        return {}
    ways: dict[str, dict[str, Any]] = {
        "crop": {"resize": "center_crop", "crop": 1.0},
        "standard": {"resize": "stretch"},
        "fit_to_window": {"resize": "letterbox", "anchor": "top_left"},
        "fit_to_window_letterbox": {"resize": "letterbox", "anchor": "center"},
    }
    found: dict[str, Any] = {"mean": mean or (0.0,), "std": std or (1.0,), **ways.get(given.get("resize_type", ""), {})}
    if "reverse_input_channels" in given:  # images are read as BGR
        found["color"] = "rgb" if given["reverse_input_channels"].lower() in ("true", "yes", "1") else "bgr"
    if found.get("resize") == "letterbox" and given.get("pad_value", "").isdecimal():
        found["pad"] = min(int(given["pad_value"]), 255)
    return found


def _hugging_face(text: str) -> dict[str, Any]:
    """preprocessor_config.json: https://huggingface.co/docs/transformers/main_classes/image_processor."""
    data = json.loads(text)
    if not isinstance(data, dict):
        return {}
    scale = data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1.0
    mean, std = (_numbers(data.get(key)) for key in ("image_mean", "image_std"))
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


def _paddle(text: str) -> dict[str, Any]:
    """inference.yml of PaddleX and PaddleOCR, infer_cfg.yml of PaddleDetection (deploy/python/preprocess.py there)."""
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
            mean, std = (_numbers(values.get(key)) for key in ("mean", "std"))
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


def _deepstream(text: str) -> dict[str, Any]:
    """nvinfer_config.txt of TAO: https://docs.nvidia.com/metropolis/deepstream/dev-guide, Gst-nvinfer."""
    pairs = (line.partition("#")[0].partition("=") for line in text.splitlines())
    given = {key.strip(): value.strip() for key, _, value in pairs}
    (factor,) = _numbers([given.get("net-scale-factor", "")]) or (0.0,)
    mean = _numbers(given.get("offsets", "0").split(";"))
    if factor <= 0 or mean is None:
        return {}
    found: dict[str, Any] = {"std": (round(1 / factor, 4),), "mean": mean}
    if color := {"0": "rgb", "1": "bgr"}.get(given.get("model-color-format", "0")):
        found["color"] = color
    if given.get("maintain-aspect-ratio") != "1":
        return {**found, "resize": "stretch"}
    anchor = "center" if given.get("symmetric-padding") == "1" else "top_left"
    return {**found, "resize": "letterbox", "anchor": anchor, "pad": 0}


_BESIDE = (
    ("preprocessor_config.json", _hugging_face),
    ("inference.yml", _paddle),
    ("infer_cfg.yml", _paddle),
    ("nvinfer_config.txt", _deepstream),
)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _SIDE_BYTES else None
    except (OSError, UnicodeDecodeError):  # no such file, or none that an exporter writes
        return None


def _numbers(found: object) -> tuple[float, ...] | None:
    """Numbers, as such or as text; None where something else is among them."""
    if not isinstance(found, (list, tuple)):
        return None
    try:
        return tuple(float(one) for one in found if one != "")
    except (TypeError, ValueError):
        return None
