"""``edgert export --format onnx``: models written for any ONNX runtime. What a file cannot express is named."""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgert.backend.ort import Function
from edgert.bundle.bundle import is_bundle, open_bundle
from edgert.compiler.build_pipeline import build
from edgert.compiler.finish import pipeline_of
from edgert.compiler.model_forms import FLOAT, FP16, ORT
from edgert.compiler.model_steps import BOXES_TOLERANCE, REWRITE_TOLERANCE, TOLERANCE, boxes_apart, uniform_feeds
from edgert.config import EmbedTask, InferStage, ModelConfig, PipelineFile, load_pipeline
from edgert.config.pipeline_file import input_words, setting, task_words
from edgert.errors import ArtifactError, BuildError, ConfigError, nearest
from edgert.files import replace_bytes
from edgert.graph import Model, load, to_bytes
from edgert.graph.dla_rewrites import fit_model, prove, without
from edgert.graph.load import check_standard
from edgert.installation import pipeline_path
from edgert.quantization.conversion import fp16_model
from edgert.quantization.precision import is_quantized
from edgert.reporter import OnProgress

# What is exported: the models of a pipeline, a bundle or an ONNX file.


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One model.

    Attributes:
        name: in the pipeline file, or of the ONNX file.
        where: its place, for errors.
        config: its section; of an ONNX file only the defaults.
        forms: who is to run it → ONNX file, weights inside, as :class:`~edgert.bundle.manifest.ModelEntry` has them;
            ``float`` is always there.
        work: what edgert does before and after the model, in the words of ``--input`` and ``--task``.
    """

    name: str
    where: str
    config: ModelConfig
    forms: Mapping[str, Path]
    work: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The models to export, and what the pipeline does besides, in words."""

    items: tuple[Item, ...]
    around: tuple[str, ...] = ()


@contextmanager
def open_source(
    path: Path,
    *,
    model: str | None = None,
    overrides: tuple[str, ...] = (),
    board: str | None = None,
    check: Callable[[Sequence[str]], object] | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Source]:
    """Open what is to be exported, in files that exist inside the block; a pipeline is built first.

    Args:
        path: a pipeline, ONNX file or bundle.
        model: name of the only one to export; all by default.
        overrides: ``key.path=value``, for a pipeline.
        board: name or file, for a pipeline; its own by default.
        check: called with the models' names before a pipeline is built, which takes minutes; its errors propagate.
        on_progress: as :func:`~edgert.compiler.build` takes it.

    Raises:
        ConfigError: options without a meaning for the source, or no such model or board.
        EdgertError: it cannot be read or built.
    """

    def wanted(names: Iterable[str]) -> tuple[str, ...]:
        known = tuple(names)
        if model is not None and model not in known:
            fix = f"models: {', '.join(known)}"
            raise ConfigError(f"no model {model!r}{nearest(model, known)}", where=str(path), fix=fix)
        return known if model is None else (model,)

    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        if path.suffix.lower() == ".onnx":
            _refuse(path, "an ONNX file", {"--set": overrides, "--board": board})
            item = _of_file(path, folder)
            wanted([item.name])
            yield Source((item,))
            return
        packed = path
        if is_bundle(path):
            _refuse(path, "a bundle", {"--set": overrides, "--board": board})
        else:
            packed = folder / "built.edgert"
            file = load_pipeline(path, overrides)
            if check is not None:
                check(wanted(file.config.models))
            build(file, packed, board=board, on_progress=on_progress)
        with open_bundle(packed) as bundle:
            members, manifest = folder / "members", bundle.manifest
            bundle.extract(members)
            file = pipeline_of(manifest, members)
            items = []
            for name in wanted(sorted(file.config.models)):
                config = file.config.models[name]
                forms = {form: members / member for form, member in manifest.models[name].forms.items()}
                work = f"before it: {input_words(config.input)}", f"after it: {task_words(config.task)}"
                items.append(Item(name, f"{path} models.{name}", config, forms, work))
            yield Source(tuple(items), _around(file))


def _of_file(path: Path, folder: Path) -> Item:
    whole = folder / "model.onnx"
    whole.write_bytes(to_bytes(load(path)))
    config = ModelConfig(onnx=path.absolute(), task=EmbedTask(embed="none"))
    return Item(re.sub(r"[^A-Za-z0-9_-]", "-", path.stem), str(path), config, {FLOAT: whole})


def _around(file: PipelineFile) -> tuple[str, ...]:
    stages = {name: stage for name, stage in file.config.stages.items() if not isinstance(stage, InferStage)}
    others = ", ".join(
        f"{name} ({type(stage).__name__.removesuffix('Stage').lower()})" for name, stage in stages.items()
    )
    budgets = file.config.budgets.model_dump(mode="json", exclude_defaults=True)
    parts = {"other stages": others, "budgets": " ".join(setting(key, value) for key, value in budgets.items())}
    return tuple(f"the pipeline's {what}: {text}" for what, text in parts.items() if text)


def _refuse(path: Path, kind: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value:
            raise ConfigError(
                f"{option} is not for {kind}, and {path} is one",
                why="it was decided when the bundle was built" if kind == "a bundle" else "nothing of it is built",
                fix=f"leave {option} out, or name the pipeline",
            )


# A model in the form that is asked for, and the proof that the written file is that model.

Form = Literal["float", "fp16", "int8-qdq", "fit"]
Target = Literal["ort", "gpu", "dla"]
FORMS: tuple[Form, ...] = get_args(Form)
TARGETS: tuple[Target, ...] = get_args(Target)
_TOLERANCE: Mapping[Form, float] = {"fp16": TOLERANCE["fp16"], "fit": REWRITE_TOLERANCE}
"""Form → largest difference of its outputs from the float model's."""


def form_of(item: Item, form: Form, target: Target = "ort") -> Model:
    """Return a model in one of the forms.

    Args:
        item: the model.
        form: ``float``: as it was built; ``fp16``; ``int8-qdq``: INT8 with Q/DQ nodes; ``fit``: in operators that a DLA
            has.
        target: whose Q/DQ nodes: those for ONNX Runtime, or for TensorRT on a GPU or a DLA.

    Raises:
        BuildError: there is no INT8 form, or a new form does not compute what the float model does.
        ModelError: dimensions stay open, where the form needs a size.
    """
    if form == "float":
        return load(item.forms[FLOAT])
    if form == "int8-qdq":
        return _quantized(item, target)
    if form == "fp16" and FP16 in item.forms:
        return load(item.forms[FP16])
    model = load(item.forms[FLOAT])
    if form == "fp16":
        made = fp16_model(model, item.config).model
    else:
        made, _ = fit_model(model, without(item.config.skip_rewrites, f"{item.where}.skip_rewrites"))
    apart, most, what = boxes_apart(model, made, uniform_feeds(model, item.config, 1)), 0.0, "boxes have no partner"
    if apart is None:
        apart, most, what = distance(item, model, made), _TOLERANCE[form], "the largest value are between outputs"
    else:
        most = BOXES_TOLERANCE["fp16" if form == "fp16" else "float"]
    if not apart <= most:
        raise BuildError(
            f"the {form} form of model {item.name!r} does not compute what the model does",
            why=f"{apart:.2g} of {what}; at most {most:g} is accepted",
            where=item.where,
            fix="leave out --form; please report the model",
        )
    return made


def check_written(path: Path, item: Item, model: Model) -> None:
    """Read a file back, check it against the ONNX standard, and run it once beside the original.

    Raises:
        ArtifactError: its outputs differ in anything.
        ModelError: it is not valid ONNX.
        BuildError: ONNX Runtime cannot run it.
    """
    written = load(path)
    check_standard(written)
    apart = distance(item, model, written)
    if apart != 0:
        raise ArtifactError(
            f"{path} does not compute what was written",
            why=f"outputs are {apart:.2g} of the largest apart",
            fix="write it again; check the disk",
        )


def distance(item: Item, first: Model, second: Model) -> float:
    """Return the difference of two models' outputs on one random input, as a fraction of the largest value."""
    functions = {id(model): Function(model) for model in (first, second)}
    feeds = uniform_feeds(first, item.config, 1)
    return prove(first, second, feeds, lambda model, feed: list(functions[id(model)](feed).values())).relative


def _quantized(item: Item, target: Target) -> Model:
    if target in item.forms:
        return load(item.forms[target])
    plain = load(item.forms[FLOAT])
    if is_quantized(plain):
        return plain
    known = [name for name in ("ort", "gpu", "dla") if name in item.forms]
    what, why = f"there is no INT8 form of model {item.name!r}", "its ranges must be measured on typical images"
    fix = f"edgert quantize {item.config.onnx.name} --images FOLDER; or a pipeline with precision: int8"
    if known:
        what, why = f"{what} for {target}", f"it was built for {', '.join(known)}"
        fix = f"--target {known[0]}, or build it for a board that has one"
    raise BuildError(what, why=why, where=item.where, fix=fix)


@dataclass(frozen=True, slots=True)
class Exported:
    """Files that an export wrote.

    Attributes:
        files: in order.
        limitations: what ONNX files cannot express, model by model.
    """

    files: tuple[Path, ...]
    limitations: tuple[str, ...]


def export(
    source: str | Path,
    output: str | Path,
    *,
    model: str | None = None,
    board: str | None = None,
    form: Form | None = None,
    target: Target | None = None,
    overrides: Iterable[str] = (),
    on_progress: OnProgress | None = None,
) -> Exported:
    """Write models as plain ONNX files, each read back, checked and run once. Blocks until done.

    A pipeline is built first, from the cached steps of earlier builds. Existing files are replaced, each atomically;
    other files stay.

    Args:
        source: a pipeline file or the name of a shipped one, an ONNX file, or a bundle of :func:`edgert.build`.
        output: a folder; for a single model also a file that ends in ``.onnx``.
        model: name of the only model to export; all by default.
        board: name or file, for a pipeline; its own by default.
        form: one of :data:`FORMS`; by default by the model's precision.
        target: whose INT8 form, one of :data:`TARGETS`; ONNX Runtime's by default.
        overrides: ``key.path=value`` for a pipeline, as given to ``--set``.
        on_progress: called for everything that happens during a build, from several threads; what it raises ends it.

    Raises:
        ConfigError: an option without a meaning for the source, no such form, model or board, or several models for
            one file.
        ArtifactError: nothing can be written there; or a written file does not compute what it should.
        BuildError: there is no such form of a model.
        EdgertError: the source cannot be read or built.
    """
    for option, value, known in (("--form", form, FORMS), ("--target", target, TARGETS)):
        if value is not None and value not in known:
            fix = f"one of {', '.join(known)}"
            raise ConfigError(f"no {value!r}{nearest(value, known)}", where=option, fix=fix)
    path, folder = pipeline_path(str(source)), Path(output)

    def check(names: Sequence[str]) -> None:
        if folder.suffix == ".onnx" and len(names) > 1:
            why, fix = ", ".join(names), "name a folder, or --model NAME"
            raise ConfigError(f"cannot write {len(names)} models to one file", why=why, fix=fix)

    given = tuple(overrides)
    with open_source(path, model=model, overrides=given, board=board, check=check, on_progress=on_progress) as opened:
        check([item.name for item in opened.items])
        written, limitations = [], list(opened.around)
        for item in opened.items:
            usual: Form = "int8-qdq" if ORT in item.forms else "fp16" if FP16 in item.forms else "float"
            made = form_of(item, form or usual, target or "ort")
            file = folder if folder.suffix == ".onnx" else folder / f"{item.name}.onnx"
            replace_bytes(file, to_bytes(made))
            check_written(file, item, made)
            written.append(file)
            limitations += [f"{item.name}, {line}" for line in item.work]
    return Exported(tuple(written), tuple(limitations))
