"""A commented pipeline file for an ONNX model that has none."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

from edgert.backend import Engine
from edgert.config.model_section import PythonTask, value_of, verb_of
from edgert.config.pipeline_file import parse_pipeline
from edgert.engine import output_shapes
from edgert.errors import ArtifactError, ConfigError, cause, shown
from edgert.files import is_file, replace_bytes, replace_text
from edgert.installation import labels_named, shipped
from edgert.reporter import OnProgress
from edgert.stages.decode.decoder import Size, all_cells, cells
from edgert.stages.decode.guess import STRIDES
from edgert.stages.decode.kinds import read_labels
from edgert.stages.source.kinds import kind_of
from edgert.wiring.check_report import Row, setting_json, yaml_value
from edgert.wiring.inferred import Inferred, infer
from edgert.wiring.search import Progress, Subject, search_progress
from edgert.wiring.trial import guesses, make_checked_decoder
from edgert.yaml_nodes import LOADER


@dataclass(frozen=True, slots=True)
class Stub:
    """A decoder template that the user fills in."""

    module: str
    files: dict[str, str]
    """File name → text of the module and its test."""

    @property
    def task(self) -> PythonTask:
        """Section ``task:`` that names this decoder."""
        return PythonTask(python=f"{self.module}:decode", args={"score": 0.25})

    def refuse_existing(self, folder: Path) -> None:
        """Check that neither file exists. Raises ConfigError: one does, and the user may have filled it in."""
        if there := next((folder / name for name in self.files if (folder / name).exists()), None):
            raise ConfigError(
                f"{str(there)!r} exists already",
                why="a decoder template would replace it; nothing was written",
                fix="--force keeps it and writes the pipeline file alone, or choose --output in another folder",
            )


def refuse_existing(path: Path, force: bool) -> None:
    """Check that a file may be written. Raises ConfigError: it exists and must not be replaced."""
    if path.exists() and (not force or path.is_dir()):
        fix = "choose another --output" if path.is_dir() else "--force replaces it, or choose another --output"
        raise ConfigError(f"{str(path)!r} exists already", why="nothing was written", fix=fix)


def write_pipeline(text: str, path: Path, force: bool) -> None:
    """Write a pipeline file atomically, and check that it loads.

    Raises ConfigError: the file exists, cannot be written, or the text is not a valid pipeline.
    """
    refuse_existing(path, force)
    try:
        content = text.encode("utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        parse_pipeline(text, path, _AnyValue())
        replace_bytes(path, content)
    except (OSError, ArtifactError) as error:
        raise ConfigError(f"cannot write {str(path)!r}", why=getattr(error, "why", "") or cause(error)) from error
    except UnicodeEncodeError as error:
        line = shown(text.splitlines()[text.count("\n", 0, error.start)]).strip()
        fix = "rename the file or folder, or write the pipeline beside the model"
        raise ConfigError(f"{line!r} cannot be part of a pipeline file", why="it is not UTF-8 text", fix=fix) from error


class _AnyValue(dict[str, str]):
    """An environment with a value for every variable, because the target machine may set others."""

    def get(self, key: str, default: Any = None) -> str:
        return key if default is None else str(default)


_SHOWN_OUTPUTS = 3


@dataclass(frozen=True, slots=True)
class Starter:
    """A starter pipeline.

    Attributes:
        text: YAML text, which loads without error.
        notes: sentences on what was guessed, and why; the text has them as comments.
        report: settings that were tried on photos, the best first; empty without photos.
        stub: decoder template that the text names; None where a decoder of edgert reads the outputs.
        labels: names of classes for the labels file; empty where none is written.
        labels_file: name of the labels file.
        files: paths of the written files, the pipeline file first; empty where nothing was written.
    """

    text: str
    notes: tuple[str, ...]
    report: tuple[Row, ...] = ()
    stub: Stub | None = None
    labels: tuple[str, ...] = ()
    labels_file: str = ""
    files: tuple[Path, ...] = ()

    def write(self, path: Path, force: bool) -> tuple[Path, ...]:
        """Write the pipeline file, labels, and a decoder template with its test; return the written files.

        Even with ``force``, an existing decoder and test are kept, because the user may have filled them in.

        Raises ConfigError: a file exists, or cannot be written.
        """
        refuse_existing(path, force)
        stub, folder = self.stub.files if self.stub else {}, path.parent
        named = {self.labels_file: "\n".join(self.labels) + "\n"} if self.labels else {}
        if self.stub and force:
            stub = {name: text for name, text in stub.items() if not (folder / name).exists()}
        elif self.stub:
            self.stub.refuse_existing(folder)
        for name in named:
            refuse_existing(folder / name, force)
        write_pipeline(self.text, path, force)
        for name, text in (stub | named).items():
            replace_text(folder / name, text)
        return (path, *(folder / name for name in stub | named))


def new(
    model: str | Path,
    output: str | Path | None = None,
    *,
    images: Sequence[str | Path] = (),
    source: str = "v4l2:///dev/video0",
    own: bool = False,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Starter:
    """Write a commented pipeline file for a model, guessed from shapes and names, or tried out on photos.

    Where no decoder reads the outputs, a decoder template is written beside the file.

    Args:
        model: path of the ONNX file.
        output: path of the pipeline file; None writes nothing.
        images: photos, folders of them or videos, on which every plausible setting is tried. Without them, and where
            neither file nor family shows the settings, the images of ``source`` are used.
        source: source of the frames, as in ``source:``.
        own: whether a decoder template is written in any case.
        force: whether an existing pipeline file is replaced; a decoder beside it is kept.
        on_progress: function called with the number of runs so far and at most; an error it raises ends the search.

    Raises:
        ModelError: the file is not an ONNX model, or its input is not one image.
        ConfigError: a photo cannot be read, or the file exists or cannot be written.
        StageError: a video cannot be read.
    """
    path = None if output is None else Path(output)
    if path is not None:
        refuse_existing(path, force)
    directory = None if path is None else path.parent
    made = starter(model, images, source, directory=directory, is_own=own, progress=search_progress(on_progress))
    return made if path is None else replace(made, files=made.write(path, force))


def images_of(source: str) -> list[Path]:
    """Return the video, image or folder of images that a source names; empty for other sources."""
    path = Path(source.removeprefix("images:").removeprefix("file://"))
    return [path] if kind_of(source) in ("file", "images") and (is_file(path) or path.is_dir()) else []


def starter(
    model_path: str | Path,
    images: Sequence[str | Path] = (),
    source: str = "v4l2:///dev/video0",
    *,
    directory: Path | None = None,
    is_own: bool = False,
    progress: Progress | None = None,
) -> Starter:
    """Return a starter pipeline for a model; see :func:`new`. Paths in it are relative to ``directory``.

    Raises ModelError: the file is not an ONNX model, or its input is not one image. Raises ConfigError: a photo cannot
    be read.
    """
    path, folder, stubs = Path(model_path), (directory or Path()).absolute(), list[Stub]()

    def own(found: Subject) -> PythonTask:
        stubs.append(make_stub(found.engine, found.network, path, folder))
        return stubs[0].task

    made = infer(path, images, own=own, is_own=is_own, in_doubt=images_of(source), progress=progress)
    if stubs:
        reason = "as requested" if is_own else "no decoder of edgert reads these outputs"
        note = f"{reason}: fill in the decoder in {stubs[0].module}.py; test_{stubs[0].module}.py tests it"
        made = replace(made, task_notes=(note,))
    listed, labels_file = labels_beside(made), f"{path.stem}_labels.txt"
    usual = "" if made.prior.declared.labels else guess_label_list(made)
    labels = labels_file if listed else usual
    text = _pipeline_text(
        os.path.relpath(path.absolute(), folder), path.stem, made, source, labels, is_usual=bool(usual)
    )
    notes = (*made.task_notes, *([f"labels: {usual}, {_LIST_COMMENTS[usual]}"] if usual else []), *made.input_notes)
    return Starter(text, notes, made.report, stubs[0] if stubs else None, listed, labels_file)


def labels_beside(made: Inferred) -> tuple[str, ...]:
    """Return the class names in a file beside the model; empty where their number does not fit the outputs."""
    declared = made.prior.declared
    return declared.labels if declared.named_beside and _fits_labels(made, declared.labels) else ()


def _fits_labels(made: Inferred, labels: tuple[str, ...]) -> bool:
    try:
        make_checked_decoder(made.setting.task, labels, made.found.engine, made.found.network)
    except ConfigError:
        return False
    return True


_LIST_COMMENTS = {
    "coco": "guessed: its 80 classes are probably those of COCO",
    "imagenet": "guessed: its 1000 classes are probably those of ImageNet",
}
"""Built-in lists of labels with a characteristic length → a comment for the pipeline file."""
_LIST_BY_CLASSES = {("detect", 80): "coco", ("classify", 1000): "imagenet"}


def guess_label_list(made: Inferred) -> str:
    """Return the name of the built-in labels of a model's probable training data; empty for none."""
    task = made.setting.task
    verb, looks = verb_of(task), guesses(made.found.engine, None)
    count = next((look.classes for look in looks if str(look) == f"{verb}: {value_of(task)}"), None)
    name = _LIST_BY_CLASSES.get((verb, count or 0), "")
    path = labels_named(name)
    return name if path is not None and _fits_labels(made, tuple(read_labels(path))) else ""


def _pipeline_text(onnx: str, stem: str, guessed: Inferred, source: str, labels: str, *, is_usual: bool) -> str:
    found, spec, declared = guessed.found, guessed.spec, guessed.prior.declared
    named = declared.labels if labels or not declared.named_beside else ()
    width, height = found.network
    outputs = [f"{tensor.name} {list(tensor.shape)}" for tensor in found.engine.outputs]
    more = f", and {len(outputs) - _SHOWN_OUTPUTS} more" if len(outputs) > _SHOWN_OUTPUTS else ""
    task, verb = guessed.setting.task, verb_of(guessed.setting.task)
    keys: dict[str, object] = {verb: value_of(task)}
    keys |= {key: getattr(task, key) for key in ("score", "iou", "threshold", "top") if hasattr(task, key)}
    keys |= {key: getattr(task, key) for key in ("options", "args") if getattr(task, key, None)}
    keys |= {"labels": labels} if labels else {}
    items: dict[str, object] = setting_json(guessed.setting)["input"]
    if guessed.size is not None:
        text = f"{guessed.size[0]}x{guessed.size[1]}   # the model takes any size; smaller is quicker"
        items = {"size": text, **items}
    # JSON's escapes of a text in double quotes are YAML's.
    name, file, address = (json.dumps(text, ensure_ascii=False) for text in (stem, onnx, source))
    lines = [
        "# A starter to be edited: check the lines after each 'guessed'.",
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
        f"    task: {yaml_value(keys)}   # {_LIST_COMMENTS[labels] if is_usual else _labels_comment(named, labels)}",
        f"    # {'tried' if guessed.report else 'guessed'}: {guessed.input_notes[0]}",
        *(f"    #   {note}" for note in guessed.input_notes[1:]),
        "    input:",
        *(f"      {key}: {yaml_value(value)}{_KEY_COMMENTS.get(key, '')}" for key, value in items.items()),
        "stages:",
        f"  camera: {{source: {address}}}",
        f"  see: {{infer: net, from: camera}}   # {width}x{height}",
        *_sink_lines(verb, str(value_of(task))),
    ]
    return "\n".join(lines) + "\n"


def _labels_comment(named: tuple[str, ...], file: str) -> str:
    if not named:
        return "add labels: names.txt, one class a line, or a list such as coco"
    return f"its {len(named)} labels are in {file or 'the model file'}: {', '.join(named[:_SHOWN_OUTPUTS])}, ..."


_KEY_COMMENTS = {
    "resize": "   # letterbox | stretch | center_crop | none",
    "anchor": "   # center | top_left",
    "color": "   # rgb | bgr | gray",
    "mean": "   # subtracted, in gray levels 0-255, in the order of color",
    "std": "   # divided by, in gray levels 0-255",
}


_DRAWN = {
    "anomaly": "[masks, labels]",
    "depth": "masks",
    "detect": "[boxes, labels]",
    "keypoints": "[boxes, keypoints]",
    "python": "boxes",
    "segment": "masks",
}
"""What is drawn of each task's results; of others labels."""


def _sink_lines(verb: str, decoder: str) -> list[str]:
    if verb == "embed":
        return ["  out: {sink: jsonl, from: see, path: out/vectors.jsonl}"]
    has_masks = decoder.endswith("-seg") or decoder == "mask-rcnn"
    elements = "[boxes, masks, labels]" if has_masks else _DRAWN.get(verb, "labels")
    return [
        f"  paint: {{draw: {elements}, from: see}}",
        "  page: {sink: http, from: paint}   # http://127.0.0.1:8080",
        "  out: {sink: jsonl, from: see, path: out/results.jsonl}",
    ]


def make_stub(engine: Engine, network: Size, onnx: Path, folder: Path) -> Stub:
    """Return the decoder template for a model's outputs."""
    stem = re.sub(r"\W", "_", onnx.stem, flags=re.ASCII)
    module = f"{stem if not stem[:1].isdigit() else f'net_{stem}'}_decoder"
    shapes = [tuple(shape) for shape in output_shapes(engine)]
    names = [tensor.name for tensor in engine.outputs]
    rows = [
        f"    {name!r}: {shape},{_shape_comment(shape, network)}" for name, shape in zip(names, shapes, strict=True)
    ]
    shown = re.sub(r"[^\w.-]", "_", onnx.name)  # for a docstring
    (image,) = engine.inputs
    fields = {
        "module": module,
        "onnx": shown,
        "network": network,
        "outputs": "\n".join(rows),
        "path": repr(os.path.relpath(onnx.absolute(), folder.absolute())),
        "input": repr(image.name),
        "shape": tuple(image.shape),
        "dtype": image.dtype,
    }
    texts = LOADER(shipped("configs/decoder_template.yaml").read_text("utf-8")).get_single_data()
    return Stub(module, {Template(name).substitute(fields): Template(texts[name]).substitute(fields) for name in texts})


def _shape_comment(shape: tuple[int, ...], network: Size) -> str:
    """Return a comment on the probable meaning of a shape; empty where unknown."""
    strides = ", ".join(map(str, STRIDES))
    counts = {all_cells(network, STRIDES): f"every cell of strides {strides}"}
    counts |= {cells(network, stride): f"every cell of stride {stride}" for stride in STRIDES}
    counts |= {3 * count: f"three anchors for {what}" for count, what in counts.items()}
    found = [f"{size} is {counts[size]}" for size in shape if size in counts]
    if len(shape) >= 2 and shape[-1] == 4:
        found.append("4 may be a box")
    if len(shape) >= 3 and shape[-1] == shape[-2] * network[0] / network[1] and network[0] % shape[-1] == 0:
        found.append(f"a map of stride {network[0] // shape[-1]}")
    return f"  # {'; '.join(found)}" if found else ""
