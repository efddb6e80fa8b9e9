"""What is exported: the models of a pipeline, a bundle or an ONNX file, with what is known of them."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from edgert.backend.tensorrt.engine_cache import read_record
from edgert.board import HOST
from edgert.board.record import find_board
from edgert.bundle.bundle import Bundle, is_bundle, open_bundle
from edgert.bundle.manifest import EngineEntry
from edgert.compiler.build_pipeline import build
from edgert.compiler.build_target import build_target, tensorrt_of
from edgert.compiler.engine_specs import BundleModel
from edgert.compiler.model_forms import FLOAT
from edgert.config import EmbedTask, InferStage, ModelConfig, PipelineFile, load_pipeline
from edgert.config.short import input_words, setting, task_words
from edgert.errors import ConfigError, nearest
from edgert.graph import load, to_bytes
from edgert.steps import OnEvent


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
        """Those of the bundle's placement, most frames first; none where nothing was placed."""
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
        """What edgert does before and after the model, in the words of ``--input`` and ``--task``."""
        if self.packed is None:
            return ()
        return f"before it: {input_words(self.config.input)}", f"after it: {task_words(self.config.task)}"


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a source before anything is built.

    Attributes:
        path: the file that was named.
        names: of its models.
        tensorrt: release on the board, ``"10.3.0"``; empty without one.
    """

    path: Path
    names: tuple[str, ...]
    tensorrt: str

    def only(self, name: str) -> Outline:
        """The same with one model. Raises ConfigError where there is none of that name."""
        if name not in self.names:
            raise ConfigError(
                f"no model {name!r}{nearest(name, self.names)}",
                where=str(self.path),
                fix=f"models: {', '.join(self.names)}",
            )
        return replace(self, names=(name,))


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

    def only(self, name: str) -> Source:
        """The same with one model. Raises ConfigError where there is none of that name."""
        chosen = self.outline.only(name).names
        return replace(self, items=tuple(item for item in self.items if item.name in chosen))

    @property
    def outline(self) -> Outline:
        """What was known of it before it was built."""
        return Outline(self.path, tuple(item.name for item in self.items), self.tensorrt)


@contextmanager
def open_source(
    path: Path,
    *,
    overrides: tuple[str, ...] = (),
    board: str | None = None,
    tensorrt: str | None = None,
    check: Callable[[Outline], object] | None = None,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Source]:
    """Opens what is to be exported, in files that are gone after the block; a pipeline is built first.

    Args:
        overrides: ``key.path=value``, for a pipeline.
        board: name or file; of a pipeline its own by default. A bundle is for one already.
        tensorrt: release; that of the board's usual JetPack by default.
        check: called before a pipeline is built, which takes minutes; what it raises comes out.
        on_event, stop: as :func:`~edgert.compiler.build` takes them.

    Raises:
        ConfigError: options that do not go with what was named, or no such board.
        EdgertError: it cannot be read or built.
    """
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        if path.suffix.lower() == ".onnx":
            _refuse(path, "an ONNX file", {"--set": overrides})
            yield _of_file(path, folder, board, tensorrt)
            return
        packed = path
        if is_bundle(path):
            _refuse(path, "a bundle", {"--set": overrides, "--board": board, "--trt": tensorrt})
        else:
            packed = folder / "built.edgert"
            file = load_pipeline(path, overrides)
            if check is not None:
                check(Outline(path, tuple(file.config.models), build_target(file, board, None, tensorrt).tensorrt))
            build(file, packed, board=board, tensorrt=tensorrt, on_event=on_event, stop=stop)
        with open_bundle(packed) as bundle:
            yield _of_bundle(bundle, path, folder / "members")


def _of_bundle(bundle: Bundle, path: Path, folder: Path) -> Source:
    manifest = bundle.manifest
    bundle.extract(folder)
    file = load_pipeline(folder / manifest.pipeline)
    packed = [BundleModel(folder, manifest, name, file.config.models[name]) for name in manifest.models]
    return Source(path, manifest.board, manifest.tensorrt, tuple(_item(one, path) for one in packed), _around(file))


def _item(packed: BundleModel, path: Path) -> Item:
    forms, files = (
        {name: packed.folder / member for name, member in members.items()}
        for members in (packed.entry.forms, packed.entry.files)
    )
    where = f"{path} models.{packed.name}"
    return Item(packed.name, where, packed.config, forms, files, packed, _plans(packed, where))


def _plans(packed: BundleModel, where: str) -> tuple[Plan, ...]:
    """The engines of the one machine that compiled some."""
    found = {target: one.engines[packed.name] for target, one in packed.manifest.compiled.items()}
    if len(found) > 1:
        raise ConfigError(
            f"engines of which machine? The bundle has those of {len(found)}",
            why=", ".join(sorted(found)),
            where=where,
            fix="export the bundle as it was before the others were packed into it; an engine runs on its machine only",
        )
    return tuple(_plan(packed.folder, one) for engines in found.values() for one in engines)


def _plan(folder: Path, engine: EngineEntry) -> Plan:
    record = read_record((folder / engine.record).read_bytes(), engine.record)
    cores = {int(where.removeprefix("dla")) for where in record["placement"].values() if where.startswith("dla")}
    return Plan(folder / engine.plan, min(cores, default=None), engine.weight)


def _of_file(path: Path, folder: Path, board: str | None, tensorrt: str | None) -> Source:
    whole = folder / "model.onnx"
    whole.write_bytes(to_bytes(load(path)))
    config = ModelConfig(onnx=path.absolute(), task=EmbedTask(embed="none"))
    item = Item(_plain(path.stem), str(path), config, {FLOAT: whole})
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
    parts = {"other stages": others, "budgets": " ".join(setting(key, value) for key, value in budgets.items())}
    return tuple(f"the pipeline's {what}: {text}" for what, text in parts.items() if text)


def _plain(stem: str) -> str:
    """A file's name as that of a model."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in stem)


def _refuse(path: Path, kind: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value:
            raise ConfigError(
                f"{option} is not for {kind}, and {path} is one",
                why="it was decided when the bundle was built" if kind == "a bundle" else "there are no keys in it",
                fix=f"leave {option} out" + (", or name the pipeline" if kind == "a bundle" else ""),
            )
