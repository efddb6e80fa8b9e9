"""Opens a pipeline, bundle or ONNX file as models to export, with their settings."""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from edgert.backend.tensorrt.engine_cache import read_record
from edgert.board import HOST, record
from edgert.bundle.bundle import is_bundle, open_bundle
from edgert.bundle.manifest import PlacedEngine
from edgert.compiler import build_pipeline, engine_specs, finish, model_forms
from edgert.compiler.build_target import build_target, tensorrt_of
from edgert.config import EmbedTask, InferStage, ModelConfig, PipelineFile, load_pipeline
from edgert.config.pipeline_file import input_words, key_value, task_words
from edgert.errors import ConfigError, nearest
from edgert.graph import load, to_bytes
from edgert.reporter import OnProgress


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled engine of a model, the DLA core of its DLA layers, and its relative number of frames."""

    path: Path
    dla_core: int | None
    weight: int

    @property
    def place(self) -> str:
        """``gpu``, or the DLA core as in ``dla0``."""
        return "gpu" if self.dla_core is None else f"dla{self.dla_core}"


@dataclass(frozen=True, eq=False)
class Item:
    """One model.

    ``where`` is its place, for errors. ``forms`` are ONNX files by runtime, as in
    :class:`~edgert.bundle.manifest.ModelEntry`. ``packed`` is None for an ONNX file. ``plans`` are engines that a board
    compiled.
    """

    name: str
    where: str
    config: ModelConfig
    forms: Mapping[str, Path]
    files: Mapping[str, Path] = field(default_factory=dict)
    packed: engine_specs.BundleModel | None = None
    plans: tuple[Plan, ...] = ()

    @cached_property
    def engines(self) -> list[PlacedEngine]:
        """Engines of the bundle's placement, in descending order of their frames; empty without a placement."""
        return [one for one in self.packed.placement.engines if one.share > 0] if self.packed is not None else []

    @property
    def uses_dla(self) -> bool:
        """Whether a part of the model was placed on a DLA."""
        return any(where.startswith("dla") for engine in self.engines for where in engine.accelerators)

    @property
    def processing(self) -> tuple[str, ...]:
        """Pre- and postprocessing in edgert, in the words of ``--input`` and ``--task``."""
        if self.packed is None:
            return ()
        return f"before it: {input_words(self.config.input)}", f"after it: {task_words(self.config.task)}"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The models to export, their board or ``host``, its TensorRT, and the pipeline's other parts in words."""

    path: Path
    board: str
    tensorrt: str
    items: tuple[Item, ...]
    other_parts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(item.name for item in self.items)


@contextmanager
def open_source(
    path: Path,
    *,
    model: str | None = None,
    overrides: tuple[str, ...] = (),
    board: str | None = None,
    tensorrt: str | None = None,
    check: Callable[[tuple[str, ...], str], object] | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Source]:
    """Open a source to export, with files that exist inside the block; a pipeline is built first.

    ``check`` is called with the models' names and the board's TensorRT before a pipeline is built, which takes minutes.
    Other arguments are those of :func:`edgert.exporter.export.export`.
    """

    def chosen_models(names: Iterable[str]) -> tuple[str, ...]:
        known = tuple(names)
        if model is not None and model not in known:
            fix = f"models: {', '.join(known)}"
            raise ConfigError(f"no model {model!r}{nearest(model, known)}", where=str(path), fix=fix)
        return known if model is None else (model,)

    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        if path.suffix.lower() == ".onnx":
            _refuse_options(path, "an ONNX file", {"--set": overrides})
            source = _file_source(path, folder, board, tensorrt)
            chosen_models(source.names)
            yield source
            return
        packed = path
        if is_bundle(path):
            _refuse_options(path, "a bundle", {"--set": overrides, "--board": board, "--trt": tensorrt})
        else:
            packed = folder / "built.edgert"
            file = load_pipeline(path, overrides)
            if check is not None:
                check(chosen_models(file.config.models), build_target(file, board, None, tensorrt).tensorrt)
            build_pipeline.build(file, packed, board=board, tensorrt=tensorrt, on_progress=on_progress)
        with open_bundle(packed) as bundle:
            members, manifest = folder / "members", bundle.manifest
            bundle.extract(members)
            file = finish.pipeline_of(manifest, members)
            models = [
                engine_specs.BundleModel(members, manifest, name, file.config.models[name])
                for name in chosen_models(sorted(file.config.models))
            ]
            items = tuple(_item(one, path) for one in models)
            yield Source(path, manifest.board, manifest.tensorrt, items, _other_parts(file))


def _item(packed: engine_specs.BundleModel, path: Path) -> Item:
    forms, files = (
        {name: packed.folder / member for name, member in members.items()}
        for members in (packed.entry.forms, packed.entry.files)
    )
    where = f"{path} models.{packed.name}"
    return Item(packed.name, where, packed.config, forms, files, packed, tuple(_compiled_plans(packed, where)))


def _compiled_plans(packed: engine_specs.BundleModel, where: str) -> Iterator[Plan]:
    entries = packed.manifest.compiled.items()
    compiled = {target: one.engines[packed.name] for target, one in entries if packed.name in one.engines}
    if len(compiled) > 1:
        raise ConfigError(
            f"cannot tell which engines to export: the bundle has those of {len(compiled)} machines",
            why=", ".join(sorted(compiled)),
            where=where,
            fix="export the bundle with engines of one machine only, as an engine runs on its own machine only",
        )
    for engine in (one for engines in compiled.values() for one in engines):
        places = read_record((packed.folder / engine.record).read_bytes(), engine.record)["placement"].values()
        cores = {int(where.removeprefix("dla")) for where in places if where.startswith("dla")}
        yield Plan(packed.folder / engine.plan, min(cores, default=None), engine.weight)


def _file_source(path: Path, folder: Path, board: str | None, tensorrt: str | None) -> Source:
    copy = folder / "model.onnx"  # with its external data
    copy.write_bytes(to_bytes(load(path)))
    config = ModelConfig(onnx=path.absolute(), task=EmbedTask(embed="none"))
    name = re.sub(r"[^A-Za-z0-9_-]", "-", path.stem)
    item = Item(name, str(path), config, {model_forms.FLOAT: copy})
    if board in (None, HOST):
        return Source(path, HOST, tensorrt or "", (item,))
    found = record.find_board(str(board), Path())
    return Source(path, found.name, tensorrt_of(found, tensorrt), (item,))


def _other_parts(file: PipelineFile) -> tuple[str, ...]:
    stages = {name: stage for name, stage in file.config.stages.items() if not isinstance(stage, InferStage)}
    others = ", ".join(
        f"{name} ({type(stage).__name__.removesuffix('Stage').lower()})" for name, stage in stages.items()
    )
    budgets = file.config.budgets.model_dump(mode="json", exclude_defaults=True)
    parts = {"other stages": others, "budgets": " ".join(key_value(key, value) for key, value in budgets.items())}
    return tuple(f"the pipeline's {what}: {text}" for what, text in parts.items() if text)


def _refuse_options(path: Path, kind: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value:
            raise ConfigError(
                f"{option} is not for {kind}, and {path} is one",
                why="the build of the bundle has set it" if kind == "a bundle" else "an ONNX file has no keys",
                fix=f"leave {option} out" + (", or name the pipeline" if kind == "a bundle" else ""),
            )
