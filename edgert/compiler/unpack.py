"""A bundle as a pipeline that runs on this machine, and who runs it: never another engine than is said."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgert.backend.chain import Chain, Skipped, why_not
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board import HOST, Machine, detect
from edgert.bundle.bundle import SUFFIX, Bundle, open_bundle
from edgert.bundle.manifest import Manifest
from edgert.compiler.board_engines import BundleEngines, take
from edgert.compiler.build_pipeline import build
from edgert.compiler.engine_specs import Bundled
from edgert.compiler.events import BuildEvents
from edgert.compiler.tuned_models import Tuning, tuning_of
from edgert.compiler.verification import Policy
from edgert.config import PipelineFile, load_pipeline
from edgert.config.engine_choice import ORT, TENSORRT, TENSORRT_DLA
from edgert.errors import ArtifactError
from edgert.files import cache_folder
from edgert.model_engine import engine_store
from edgert.steps import OnEvent

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
    on_event: OnEvent | None = None,
) -> Iterator[Unpacked]:
    """Opens a bundle, checks all of it, and unpacks what is needed into a folder that is gone after the block.

    Args:
        overrides: ``key.path=value``, as given to ``--set``.
        strict: refuses to run on any engine but the first of the chain, and one that runs nodes elsewhere than placed.
        machine, trt: those of this machine by default.
        on_event: called for what happens while engines are compiled, as far as they are not there yet.

    Raises:
        ArtifactError: the bundle is damaged, of a later edgert, or for another board than this Jetson.
        BuildError: ``strict``, and an engine would be skipped; or none is left.
        ConfigError: an override that cannot be.
    """
    here, trt, events = machine or detect(), trt or TrtBackend(), BuildEvents(on_event)
    with open_bundle(path) as bundle, tempfile.TemporaryDirectory(prefix="edgert-") as name:
        manifest, folder, given = bundle.manifest, Path(name), tuple(overrides)
        check_board(manifest, here, str(path))
        reasons = partial(why_not, machine=here, trt=trt)
        chain = Chain(manifest.engines, reasons, strict=strict, report=events.refused, where=str(path))
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
                events.note(left)
            policy: Policy = "strict" if strict else "warn"
            engines = BundleEngines(Bundled(folder, manifest), chain, trt, store, events, policy=policy)
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


# A pipeline file on a board with a DLA: what the DLA needs is built here once, kept, and found again.
#
# A DLA wants a placement, scales and rewritten models, which is what a bundle has. So one is made for this very
# board, in the cache, by the steps that make any bundle; the second time they do nothing. Sources, sinks and paths
# stay those of the pipeline file: only its models are the bundle's.


@contextmanager
def built_here(
    file: PipelineFile,
    *,
    strict: bool = False,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    on_event: OnEvent | None = None,
) -> Iterator[Unpacked | None]:
    """Builds what a pipeline's models need on this board's DLA; inside the block its files are there.

    Yields:
        The pipeline with models made ready, and who runs them. None where ``engines:`` does not name ``tensorrt-dla``,
        or this machine cannot run it: then the pipeline is run as it stands.

    Raises:
        EdgertError: as :func:`~edgert.compiler.build_pipeline.build` and :func:`~edgert.compiler.unpack.unpacked`.
    """
    here, trt = machine or detect(), trt or TrtBackend()
    if TENSORRT_DLA not in file.config.engines or why_not(TENSORRT_DLA, here, trt):
        yield None
        return
    path = _kept(file.document.path)
    build(file, path, board=here.name, mode=_mode(here), tensorrt=trt.library.version, on_event=on_event)
    with unpacked(path, strict=strict, machine=here, trt=trt, on_event=on_event) as found:
        config = file.config.model_copy(update={"models": found.file.config.models})
        yield replace(found, file=replace(file, config=config))


def _kept(pipeline: Path) -> Path:
    """One bundle for each pipeline file."""
    digest = hashlib.sha256(str(pipeline.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "here" / f"{pipeline.stem}-{digest}{SUFFIX}"


def _mode(machine: Machine) -> str | None:
    """The power mode that the board is in, where its record knows it; else the usual one."""
    modes = machine.board.modes if machine.board is not None else ()
    return machine.mode if machine.mode in {mode.name for mode in modes} else None
