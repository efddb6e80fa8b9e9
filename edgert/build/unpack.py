"""A bundle as a pipeline that runs on this machine, and who runs it: never another engine than is said."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgert.artifact.bundle import Bundle, open_bundle
from edgert.artifact.manifest import Manifest
from edgert.board import HOST, Machine, detect
from edgert.build.tuning import Tuning, tuning_of
from edgert.config import PipelineFile, load_pipeline
from edgert.config.engine import ORT, ORT_CUDA, TENSORRT, TENSORRT_DLA
from edgert.errors import ArtifactError, BuildError


@dataclass(frozen=True, slots=True)
class Skipped:
    """An engine that stands earlier in the chain and does not run the bundle here."""

    engine: str
    why: str

    def __str__(self) -> str:
        return f"{self.engine} skipped: {self.why}"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A bundle ready to run.

    Attributes:
        file: the pipeline, its models unpacked.
        manifest: of the bundle.
        engine: who runs it.
        skipped: those before it in the chain, with the reason.
        tuned: a line per model that was tuned: what runs it, or why that does not hold here.
    """

    file: PipelineFile
    manifest: Manifest
    engine: str
    skipped: tuple[Skipped, ...]
    tuned: tuple[str, ...] = ()


@contextmanager
def unpacked(
    path: str | Path, overrides: Iterable[str] = (), *, strict: bool = False, machine: Machine | None = None
) -> Iterator[Unpacked]:
    """Opens a bundle, checks all of it, and unpacks what is needed into a folder that is gone after the block.

    Args:
        overrides: ``key.path=value``, as given to ``--set``.
        strict: refuses to run on any engine but the first of the chain.
        machine: this one by default.

    Raises:
        ArtifactError: the bundle is damaged, of a later edgert, or for another board than this Jetson.
        BuildError: ``strict``, and an engine would be skipped; or none is left.
        ConfigError: an override that cannot be.
    """
    with open_bundle(path) as bundle:
        engine, skipped = choose(bundle.manifest, machine or detect(), str(path))
        if strict and skipped:
            raise BuildError(
                f"{skipped[0].engine} cannot run this bundle here",
                why=skipped[0].why,
                where=str(path),
                fix=f"leave --strict out to run it with {engine}",
            )
        with tempfile.TemporaryDirectory(prefix="edgert-") as name:
            folder = Path(name)
            bundle.extract(folder, _needed(bundle))
            given = tuple(overrides)
            file = load_pipeline(folder / bundle.manifest.pipeline, given)
            tuning = tuning_of(bundle, file) if engine == ORT else Tuning()
            if tuning.overrides:
                bundle.extract(folder, tuning.members)
                file = load_pipeline(folder / bundle.manifest.pipeline, (*tuning.overrides, *given))
            yield Unpacked(file, bundle.manifest, engine, skipped, tuning.told)


def choose(manifest: Manifest, machine: Machine, where: str) -> tuple[str, tuple[Skipped, ...]]:
    """The first engine of the chain that can run here, and why those before it cannot.

    Raises:
        ArtifactError: the machine is a Jetson, and not the one the bundle is for.
        BuildError: no engine can.
    """
    if machine.is_jetson and manifest.board not in (HOST, machine.name):
        raise ArtifactError(
            f"this bundle is for {manifest.board}",
            why=f"this machine is a {machine.name}: placement, scales and predictions are another's",
            where=where,
            fix=f"edgert build PIPELINE --board {machine.name if machine.board else 'BOARD'}",
        )
    skipped: list[Skipped] = []
    for engine in manifest.engines:
        why = _why_not(engine, manifest, machine)
        if not why:
            return engine, tuple(skipped)
        skipped.append(Skipped(engine, why))
    told = "; ".join(map(str, skipped))
    raise BuildError("no engine can run this bundle here", why=told, where=where, fix="pip install onnxruntime")


def _why_not(engine: str, manifest: Manifest, machine: Machine) -> str:
    """Why an engine cannot run the bundle on this machine; empty if it can."""
    if engine in (TENSORRT, TENSORRT_DLA):
        if not machine.is_jetson:
            return f"its engines are built and run on {manifest.board} only; this machine is no Jetson"
        return "its engines have not been compiled on this board yet"
    if engine == ORT_CUDA:
        return "edgert runs ONNX Runtime on the processor"
    return "" if engine == ORT else f"this edgert knows no engine {engine!r}"


def _needed(bundle: Bundle) -> list[str]:
    """The pipeline, the user's code, labels and the models that ONNX Runtime runs; not what only a compiler reads."""
    manifest = bundle.manifest
    unneeded = {path for model in manifest.models.values() for path in (*model.forms.values(), *model.files.values())}
    found = [path for path in manifest.members if path not in unneeded]
    for model in manifest.models.values():
        found += [model.forms[name] for name in ("ort", "fp16", "float") if name in model.forms][:1]
        found += [path for kind, path in model.files.items() if kind == "labels"]
    return found
