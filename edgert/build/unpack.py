"""A bundle as a pipeline that runs on this machine, and who runs it: never another engine than is said."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgert.artifact.bundle import Bundle, open_bundle
from edgert.artifact.manifest import Manifest
from edgert.backend.chain import Chain, Skipped, why_not
from edgert.backend.trt.backend import TrtBackend
from edgert.board import HOST, Machine, detect
from edgert.build.engines import BundleEngines
from edgert.build.member_engines import take
from edgert.build.order import Bundled
from edgert.build.telling import Telling
from edgert.build.tuning import Tuning, tuning_of
from edgert.compiler import Tell
from edgert.compiler.verify import Policy
from edgert.config import PipelineFile, load_pipeline
from edgert.config.engine import ORT, TENSORRT, TENSORRT_DLA
from edgert.errors import ArtifactError
from edgert.ready import engine_store

_COMPILED = (TENSORRT, TENSORRT_DLA)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A bundle ready to run.

    Attributes:
        file: the pipeline, its models unpacked.
        manifest: of the bundle.
        engine: who runs it.
        skipped: those before it in the chain, with the reason.
        tuned: a line per model that was tuned: what runs it, or why that does not hold here.
        engines: compiles the models, for :class:`~edgert.pipeline.Pipeline`; None where ONNX Runtime is all there is.
    """

    file: PipelineFile
    manifest: Manifest
    engine: str
    skipped: tuple[Skipped, ...]
    tuned: tuple[str, ...] = ()
    engines: BundleEngines | None = None


@contextmanager
def unpacked(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    strict: bool = False,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    tell: Tell | None = None,
) -> Iterator[Unpacked]:
    """Opens a bundle, checks all of it, and unpacks what is needed into a folder that is gone after the block.

    Args:
        overrides: ``key.path=value``, as given to ``--set``.
        strict: refuses to run on any engine but the first of the chain, and one that runs nodes elsewhere than placed.
        machine, trt: those of this machine by default.
        tell: told of what happens while engines are compiled, as far as they are not there yet.

    Raises:
        ArtifactError: the bundle is damaged, of a later edgert, or for another board than this Jetson.
        BuildError: ``strict``, and an engine would be skipped; or none is left.
        ConfigError: an override that cannot be.
    """
    here, trt, telling = machine or detect(), trt or TrtBackend(), Telling(tell)
    with open_bundle(path) as bundle, tempfile.TemporaryDirectory(prefix="edgert-") as name:
        manifest, folder, given = bundle.manifest, Path(name), tuple(overrides)
        check_board(manifest, here, str(path))
        reasons = partial(why_not, machine=here, trt=trt)
        chain = Chain(manifest.engines, reasons, strict=strict, tell=telling.refused, where=str(path))
        skipped = chain.unable()
        engine = chain.engines[len(skipped)]
        bundle.extract(folder, models_of(manifest) if engine in _COMPILED else _needed(bundle))
        file = load_pipeline(folder / manifest.pipeline, given)
        tuning = tuning_of(bundle, file) if engine == ORT else Tuning()
        if tuning.overrides:
            bundle.extract(folder, tuning.members)
            file = load_pipeline(folder / manifest.pipeline, (*tuning.overrides, *given))
        engines = None
        if list(chain.engines) != [ORT]:
            store = engine_store()
            if engine in _COMPILED and (left := take(bundle, trt.facts, store)):
                telling.note(left)
            policy: Policy = "strict" if strict else "warn"
            engines = BundleEngines(Bundled(folder, manifest), chain, trt, store, telling, policy=policy)
        yield Unpacked(file, manifest, engine, skipped, tuning.told, engines)


def check_board(manifest: Manifest, machine: Machine, where: str) -> None:
    """Raises ArtifactError on a Jetson that the bundle is not for."""
    if machine.is_jetson and manifest.board not in (HOST, machine.name):
        raise ArtifactError(
            f"this bundle is for {manifest.board}",
            why=f"this machine is a {machine.name}: placement, scales and predictions are another's",
            where=where,
            fix=f"edgert build PIPELINE --board {machine.name if machine.board else 'BOARD'}",
        )


def models_of(manifest: Manifest) -> list[str]:
    """All members but the engines."""
    engines = {path for entry in manifest.compiled.values() for path in entry.members}
    return [path for path in manifest.members if path not in engines]


def _needed(bundle: Bundle) -> list[str]:
    """The pipeline, the user's code, labels and the models that ONNX Runtime runs; not what only a compiler reads."""
    manifest = bundle.manifest
    unneeded = {path for model in manifest.models.values() for path in (*model.forms.values(), *model.files.values())}
    found = [path for path in models_of(manifest) if path not in unneeded]
    for model in manifest.models.values():
        found += [model.forms[name] for name in ("ort", "fp16", "float") if name in model.forms][:1]
        found += [path for kind, path in model.files.items() if kind == "labels"]
    return found
