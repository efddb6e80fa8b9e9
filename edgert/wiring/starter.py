"""``starter``: a commented pipeline file for an ONNX model that nobody has described yet."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.config import InputConfig, ModelConfig, load_pipeline
from edgert.config.model_section import value_of, verb_of
from edgert.errors import ConfigError, ModelError, cause
from edgert.files import replace_text
from edgert.graph import TensorSpec, inputs, load
from edgert.wiring.check import advised_of, rows_of, ties_of
from edgert.wiring.check_report import Row, described, yaml_value
from edgert.wiring.photos import read_photos
from edgert.wiring.search import Progress, Search, Subject, subject
from edgert.wiring.settings import SCALES, Setting
from edgert.wiring.trial import guesses, readings, task_of

# Writing a pipeline file where there was none.


def refuse_existing(path: Path, force: bool) -> None:
    """Raises ConfigError when there is a file already and it is not to be replaced."""
    if path.exists() and (not force or path.is_dir()):
        fix = "choose another --output" if path.is_dir() else "--force replaces it, or choose another --output"
        raise ConfigError(f"{str(path)!r} exists already", why="nothing was written", fix=fix)


def write_pipeline(text: str, path: Path, force: bool) -> None:
    """Writes a pipeline file whole or not at all, and checks that it loads.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    refuse_existing(path, force)
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        load_pipeline(part, env=_AnyValue())
        replace_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}", why=cause(error)) from error
    finally:
        part.unlink(missing_ok=True)


class _AnyValue(dict[str, str]):
    """An environment where every variable is set: a source may name one that only the target machine has."""

    def get(self, key: str, default: Any = None) -> str:
        return key if default is None else str(default)


_USUAL_SIZE = 640
_SHOWN_OUTPUTS = 3
_DEFAULT_INPUTS: dict[str, dict[str, object]] = {
    "detect": {"resize": "letterbox", "std": (255.0,)},
    "keypoints": {"resize": "letterbox", "std": (255.0,)},
    "classify": {"resize": "center_crop", "crop": 0.875},
    "segment": {"resize": "stretch"},
    "embed": {"resize": "stretch"},
    "text": {"resize": "letterbox", "anchor": "top_left", "pad": 127, "mean": (127.5,), "std": (127.5,)},
    "depth": {"resize": "stretch"},
    "image": {"resize": "stretch", "std": (255.0,)},
    "anomaly": {"resize": "stretch"},
}
"""What models of a task usually want; where color and scale are not named, ImageNet's mean and std."""


@dataclass(frozen=True, slots=True)
class Starter:
    """A starter pipeline.

    Attributes:
        text: the YAML; loads without error.
        notes: what was guessed and why, a sentence each; also in the text, as comments.
        report: the settings that were tried on photos, the best first; empty without photos.
    """

    text: str
    notes: tuple[str, ...]
    report: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class _Guessed:
    """The parts of the model's section, each with the reason for it."""

    setting: Setting
    size: tuple[int, int] | None
    task_notes: tuple[str, ...]
    input_notes: tuple[str, ...]
    report: tuple[Row, ...] = ()


def starter(
    model_path: str | Path,
    images: Sequence[str | Path] = (),
    source: str = "v4l2:///dev/video0",
    *,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> Starter:
    """Writes a pipeline for a model: guessed from its shapes and names, or, with photos, tried out.

    Args:
        images: photos or folders; with them every plausible setting is tried (see
        :func:`~edgert.wiring.check`).
        source: where frames come from, as in ``source:``.
        directory: where the file will stand; the model's path is written relative to it. The current one by default.
        progress: called with runs made and most runs to come.

    Raises:
        ModelError: not an ONNX model, not one image as its input, or outputs that nothing can read.
        ConfigError: a photo that cannot be read.
    """
    path = Path(model_path)
    specs = inputs(load(path))
    if len(specs) != 1 or len(specs[0].shape) != 4:
        raise ModelError(
            "a pipeline feeds a model one image and nothing else",
            why=f"this model takes {', '.join(map(str, specs)) or 'nothing'}",
            where=str(path),
            fix="export the model with the image as its only input, or use edgert.load_engine",
        )
    (spec,) = specs
    height, width = spec.shape[1:3] if spec.shape[3] in (1, 3) else spec.shape[2:]
    size = None
    if not isinstance(height, int) or not isinstance(width, int):  # else the model fixes it
        size = (width if isinstance(width, int) else _USUAL_SIZE, height if isinstance(height, int) else _USUAL_SIZE)
    gray = 1 in (spec.shape[1], spec.shape[3]) and 3 not in (spec.shape[1], spec.shape[3])
    blank = InputConfig(color="gray" if gray else "rgb").model_copy(update={"size": size})
    config = {"onnx": path.absolute(), "task": {"embed": "none"}, "input": blank}
    found = subject(ModelConfig.model_validate(config), (), str(path))
    guessed = _guess(found, blank, size)
    if images:
        guessed = _tried(found, guessed, images, progress)
    folder = (directory or Path()).absolute()
    text = _text(os.path.relpath(path.absolute(), folder), path.stem, guessed, spec, found, source)
    return Starter(text, (*guessed.task_notes, *guessed.input_notes), guessed.report)


def _guess(found: Subject, blank: InputConfig, size: tuple[int, int] | None) -> _Guessed:
    looks = guesses(found.engine)
    task = readings(None, found.engine, (), found.network)[0]
    reason = next(look.reason for look in looks if task_of(look) == task)
    others = [str(look) for look in looks if task_of(look) != task]
    notes: tuple[str, ...] = (f"{verb_of(task)}: {value_of(task)}, because {reason}",)
    if others:
        notes += (f"it could also be {', '.join(others)}",)
    usual = dict(_DEFAULT_INPUTS[verb_of(task)])
    if found.dtype in ("uint8", "int8"):
        usual |= {"mean": (0.0,) if found.dtype == "uint8" else (128.0,), "std": (1.0,)}
    elif value_of(task) == "yolox":
        usual |= {"anchor": "top_left", "color": "bgr", "std": (1.0,)}
    elif "std" not in usual and blank.color == "gray":
        usual["std"] = (255.0,)
    elif "std" not in usual:
        usual["mean"], usual["std"] = SCALES["ImageNet"]
    why = ("color and scale are what such models usually want", "no photo was given to try them on")
    return _Guessed(Setting(blank.model_copy(update=usual), task), size, notes, why)


def _tried(found: Subject, guessed: _Guessed, images: Sequence[str | Path], progress: Progress | None) -> _Guessed:
    photos = read_photos(images)
    base = guessed.setting
    tasks = readings(None, found.engine, (), found.network)
    search = Search(found, photos, verb_of(base.task), progress)
    search.explore(base, tasks)
    chosen = advised_of(search.ranking, base)
    rows, task = rows_of(search.ranking, None), chosen.setting.task
    photo_count = f"{len(photos)} photo{'' if len(photos) == 1 else 's'}"
    notes = (f"the best of {len(rows)} settings on {photo_count}", *ties_of(search.ranking, chosen, len(photos)))
    reasons = guessed.task_notes
    if "task" in base.differing(chosen.setting):
        reasons = (f"{verb_of(task)}: {value_of(task)}, because it reads the outputs best on the photos",)
    return _Guessed(chosen.setting, guessed.size, reasons, notes, rows)


def _text(onnx: str, stem: str, guessed: _Guessed, spec: TensorSpec, found: Subject, source: str) -> str:
    width, height = found.network
    outputs = [f"{tensor.name} {list(tensor.shape)}" for tensor in found.engine.outputs]
    more = f", and {len(outputs) - _SHOWN_OUTPUTS} more" if len(outputs) > _SHOWN_OUTPUTS else ""
    task, verb = guessed.setting.task, verb_of(guessed.setting.task)
    keys: dict[str, object] = {verb: value_of(task)}
    keys |= {key: getattr(task, key) for key in ("score", "iou", "threshold", "top") if hasattr(task, key)}
    if options := getattr(task, "options", None):
        keys["options"] = options
    items: dict[str, object] = described(guessed.setting)["input"]
    if guessed.size is not None:
        text = f"{guessed.size[0]}x{guessed.size[1]}   # the model takes any size; smaller is quicker"
        items = {"size": text, **items}
    # JSON's escapes of a text in double quotes are YAML's.
    name, file, address = (json.dumps(text, ensure_ascii=False) for text in (stem, onnx, source))
    lines = [
        "# A starter, to be edited: what stands after 'guessed' is worth a look.",
        "# edgert check THIS_FILE --images photo.jpg   checks whether the model is wired right",
        "# edgert run THIS_FILE                       runs it",
        "schema: 1",
        f"name: {name}",
        "models:",
        "  net:",
        f"    onnx: {file}   # relative to this file",
        f"    # input {spec}; outputs {', '.join(outputs[:_SHOWN_OUTPUTS])}{more}",
        f"    # guessed: {guessed.task_notes[0]}",
        *(f"    #   {note}" for note in guessed.task_notes[1:]),
        f"    task: {yaml_value(keys)}   # add labels: names.txt, one class a line",
        f"    # {'tried' if guessed.report else 'guessed'}: {guessed.input_notes[0]}",
        *(f"    #   {note}" for note in guessed.input_notes[1:]),
        "    input:",
        *(f"      {key}: {yaml_value(value)}{_COMMENTS.get(key, '')}" for key, value in items.items()),
        "stages:",
        f"  camera: {{source: {address}}}",
        f"  see: {{infer: net, from: camera}}   # {width}x{height}",
        *_sinks(verb),
    ]
    return "\n".join(lines) + "\n"


_COMMENTS = {
    "resize": "   # letterbox | stretch | center_crop | none",
    "anchor": "   # center | top_left",
    "color": "   # rgb | bgr | gray",
    "mean": "   # subtracted, in gray levels 0-255, in the order of color",
    "std": "   # divided by, in gray levels 0-255",
}


def _sinks(verb: str) -> list[str]:
    if verb == "embed":
        return ["  out: {sink: jsonl, from: see, path: out/vectors.jsonl}"]
    elements = {"segment": "masks", "keypoints": "[boxes, keypoints]", "detect": "[boxes, labels]"}.get(verb, "labels")
    return [
        f"  paint: {{draw: {elements}, from: see}}",
        "  page: {sink: http, from: paint}   # http://127.0.0.1:8080",
        "  out: {sink: jsonl, from: see, path: out/results.jsonl}",
    ]
