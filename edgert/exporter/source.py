"""Models to export, from a pipeline, a bundle or an ONNX file, with their known settings."""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from edgert.backend.tensorrt.engine_cache import read_record
from edgert.board import HOST
from edgert.board.record import find_board
from edgert.bundle.bundle import is_bundle, open_bundle
from edgert.compiler.build_pipeline import build
from edgert.compiler.build_target import build_target, tensorrt_of
from edgert.compiler.engine_specs import BundleModel
from edgert.compiler.finish import pipeline_of
from edgert.compiler.model_forms import FLOAT
from edgert.config import EmbedTask, InferStage, ModelConfig, PipelineFile, load_pipeline
from edgert.config.pipeline_file import input_words, key_value, task_words
from edgert.errors import ConfigError, nearest
from edgert.graph import load, to_bytes
from edgert.reporter import OnProgress


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled engine of a model.

    Attributes:
        path: TensorRT's file.
        dla_core: where it has its DLA layers; None for none.
        weight: how many frames it gets, in comparison with the model's other engines.
    """

    path: Path
    dla_core: int | None
    weight: int

    @property
    def place(self) -> str:
        """``gpu``, or its DLA core."""
        return "gpu" if self.dla_core is None else f"dla{self.dla_core}"


@dataclass(frozen=True, eq=False)
class Item:
    """One model.

    Attributes:
        name: in the pipeline file, or of the ONNX file.
        where: its place, for errors.
        config: its section; of an ONNX file only the defaults.
        forms: who is to run it → ONNX file, weights inside, as :class:`~edgert.bundle.manifest.ModelEntry` has them;
            ``float`` is always there.
        files: what else a bundle has of it.
        packed: its place in the bundle; None for an ONNX file, of which nothing is known but itself.
        plans: its engines, where a board compiled some into the bundle.
    """

    name: str
    where: str
    config: ModelConfig
    forms: Mapping[str, Path]
    files: Mapping[str, Path] = field(default_factory=dict)
    packed: BundleModel | None = None
    plans: tuple[Plan, ...] = ()

    @cached_property
    def engines(self) -> list[dict[str, Any]]:
        """Engines of the bundle's placement, most frames first; empty where nothing was placed."""
        if "placement" not in self.files:
            return []
        found: list[dict[str, Any]] = json.loads(self.files["placement"].read_text(encoding="utf-8"))["engines"]
        return [engine for engine in found if engine["share"] > 0]

    @property
    def uses_dla(self) -> bool:
        """Whether some of it was placed on a DLA."""
        return any(where.startswith("dla") for engine in self.engines for where in engine["accelerators"])

    @property
    def work(self) -> tuple[str, ...]:
        """Pre- and postprocessing that edgert does around the model, in the words of ``--input`` and ``--task``."""
        if self.packed is None:
            return ()
        return f"before it: {input_words(self.config.input)}", f"after it: {task_words(self.config.task)}"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The models to export.

    Attributes:
        path: the file that was named.
        board: name, or ``host``.
        tensorrt: release on the board, ``"10.3.0"``; empty without one.
        items: the models.
        around: what the pipeline does besides, in words.
    """

    path: Path
    board: str
    tensorrt: str
    items: tuple[Item, ...]
    around: tuple[str, ...] = ()

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
    """Open what is to be exported, in files that exist inside the block; a pipeline is built first.

    Args:
        path: a pipeline, ONNX file or bundle.
        model: name of the only one to export; all by default.
        overrides: ``key.path=value``, for a pipeline.
        board: name or file; of a pipeline its own by default. A bundle already has one.
        tensorrt: release; that of the board's usual JetPack by default.
        check: called with the models' names and the board's TensorRT before a pipeline is built, which takes minutes;
            its errors propagate.
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
            _refuse(path, "an ONNX file", {"--set": overrides})
            source = _of_file(path, folder, board, tensorrt)
            wanted(source.names)
            yield source
            return
        packed = path
        if is_bundle(path):
            _refuse(path, "a bundle", {"--set": overrides, "--board": board, "--trt": tensorrt})
        else:
            packed = folder / "built.edgert"
            file = load_pipeline(path, overrides)
            if check is not None:
                check(wanted(file.config.models), build_target(file, board, None, tensorrt).tensorrt)
            build(file, packed, board=board, tensorrt=tensorrt, on_progress=on_progress)
        with open_bundle(packed) as bundle:
            members, manifest = folder / "members", bundle.manifest
            bundle.extract(members)
            file = pipeline_of(manifest, members)
            models = [
                BundleModel(members, manifest, name, file.config.models[name])
                for name in wanted(sorted(file.config.models))
            ]
            items = tuple(_item(one, path) for one in models)
            yield Source(path, manifest.board, manifest.tensorrt, items, _around(file))


def _item(packed: BundleModel, path: Path) -> Item:
    forms, files = (
        {name: packed.folder / member for name, member in members.items()}
        for members in (packed.entry.forms, packed.entry.files)
    )
    where = f"{path} models.{packed.name}"
    return Item(packed.name, where, packed.config, forms, files, packed, tuple(_plans(packed, where)))


def _plans(packed: BundleModel, where: str) -> Iterator[Plan]:
    """Yield the engines of the one machine that compiled some."""
    found = {target: one.engines[packed.name] for target, one in packed.manifest.compiled.items()}
    if len(found) > 1:
        raise ConfigError(
            f"cannot tell which engines to export: the bundle has those of {len(found)} machines",
            why=", ".join(sorted(found)),
            where=where,
            fix="export the bundle as it was before the others were packed into it; an engine runs on its machine only",
        )
    for engine in (one for engines in found.values() for one in engines):
        places = read_record((packed.folder / engine.record).read_bytes(), engine.record)["placement"].values()
        cores = {int(where.removeprefix("dla")) for where in places if where.startswith("dla")}
        yield Plan(packed.folder / engine.plan, min(cores, default=None), engine.weight)


def _of_file(path: Path, folder: Path, board: str | None, tensorrt: str | None) -> Source:
    whole = folder / "model.onnx"
    whole.write_bytes(to_bytes(load(path)))
    config = ModelConfig(onnx=path.absolute(), task=EmbedTask(embed="none"))
    name = re.sub(r"[^A-Za-z0-9_-]", "-", path.stem)
    item = Item(name, str(path), config, {FLOAT: whole})
    if board in (None, HOST):
        return Source(path, HOST, tensorrt or "", (item,))
    found = find_board(str(board), Path())
    return Source(path, found.name, tensorrt_of(found, tensorrt), (item,))


def _around(file: PipelineFile) -> tuple[str, ...]:
    stages = {name: stage for name, stage in file.config.stages.items() if not isinstance(stage, InferStage)}
    others = ", ".join(
        f"{name} ({type(stage).__name__.removesuffix('Stage').lower()})" for name, stage in stages.items()
    )
    budgets = file.config.budgets.model_dump(mode="json", exclude_defaults=True)
    parts = {"other stages": others, "budgets": " ".join(key_value(key, value) for key, value in budgets.items())}
    return tuple(f"the pipeline's {what}: {text}" for what, text in parts.items() if text)


def _refuse(path: Path, kind: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value:
            raise ConfigError(
                f"{option} is not for {kind}, and {path} is one",
                why="it was decided when the bundle was built" if kind == "a bundle" else "there are no keys in it",
                fix=f"leave {option} out" + (", or name the pipeline" if kind == "a bundle" else ""),
            )
