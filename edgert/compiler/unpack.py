"""A bundle as a pipeline that runs on this machine, with its engines.

Skipped engines, and tuned settings that are not valid on this machine, are always reported with the reason.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgert.backend.chain import Chain, Skipped, why_not
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board import Machine, detect
from edgert.bundle.bundle import SUFFIX, Bundle, open_bundle
from edgert.bundle.manifest import Manifest
from edgert.compiler.board_engines import BuildEvents, BundleEngines
from edgert.compiler.build_pipeline import build
from edgert.compiler.build_target import batching_stages, is_live
from edgert.compiler.finish import cache_engines, check_board, members_but_engines, pipeline_of
from edgert.config import PipelineFile
from edgert.config.engine_choice import ORT, TENSORRT, TENSORRT_DLA
from edgert.engine import engine_store
from edgert.errors import ArtifactError, raised_as
from edgert.files import cache_folder
from edgert.reporter import OnProgress
from edgert.tuner.candidates import overrides
from edgert.tuner.trials import Tuned, difference, identity, tuned_of

_COMPILED = (TENSORRT, TENSORRT_DLA)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A bundle ready to run.

    Attributes:
        file: the pipeline, with unpacked models.
        manifest: manifest of the bundle.
        engine: first engine of the chain that can run here.
        skipped: engines before it in the chain, with reasons.
        tuned: line for each tuned model: its settings, or why they are not valid here.
        engines: engines of the models, for :class:`~edgert.pipeline.Pipeline`; None if only ONNX Runtime is used.
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
    signers: Path | None = None,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Unpacked]:
    """Open a bundle, check it, and unpack the necessary members into a folder that is deleted after the block.

    Args:
        path: file of the bundle.
        overrides: ``key.path=value``, as given to ``--set``.
        strict: whether it is an error if the first engine of the chain is skipped, or runs nodes elsewhere than placed.
        signers: file of accepted signers; None: any bundle may run. See
            :func:`~edgert.bundle.signature.signers_here`.
        machine: the machine; by default this one.
        trt: TensorRT's backend; by default that of this machine.
        on_progress: function called for events while missing engines are compiled.

    Yields:
        The bundle, ready to run.

    Raises:
        ArtifactError: the bundle is damaged, of another schema, for another board than this Jetson, or signed by none
            of the signers.
        BuildError: ``strict``, and an engine would be skipped; or none is left.
        ConfigError: an override is invalid.
    """
    here, trt, events = machine or detect(), trt or TrtBackend(), BuildEvents(on_progress)
    with open_bundle(path) as bundle, bundle.temporary_folder() as folder:
        bundle.signer(signers)
        manifest, given = bundle.manifest, tuple(overrides)
        if difference := check_board(manifest, here, str(path)):
            events.note(difference)
        reasons = partial(why_not, machine=here, trt=trt)
        chain = Chain(manifest.engines, reasons, strict=strict, report=events.refused, where=str(path))
        skipped = chain.unavailable()
        engine = chain.engines[len(skipped)]
        is_compiled = engine in _COMPILED
        bundle.extract(folder, members_but_engines(manifest) if is_compiled else _members_for_onnxruntime(manifest))
        file = pipeline_of(manifest, folder, given)
        tuning = tuning_of(bundle, file) if engine == ORT else BundleTuning()
        if tuning.overrides:
            bundle.extract(folder, tuning.members)
            file = pipeline_of(manifest, folder, (*tuning.overrides, *given))
        engines = None
        if list(chain.engines) == [ORT]:
            file = replace(file, passed_over={})  # the engines are settled, although the file has no engines:
        else:
            store = engine_store()
            if is_compiled and (left := cache_engines(bundle, trt.timed_facts, store)):
                events.note(left)
            engines = BundleEngines(folder, manifest, chain, trt, store, events)
        yield Unpacked(file, manifest, engine, skipped, tuning.report, engines)


def _members_for_onnxruntime(manifest: Manifest) -> list[str]:
    """Return the members that ONNX Runtime needs: pipeline, user code, labels and models."""
    unneeded = {path for model in manifest.models.values() for path in (*model.forms.values(), *model.files.values())}
    found = [path for path in members_but_engines(manifest) if path not in unneeded]
    for model in manifest.models.values():
        found += [model.forms[name] for name in ("ort", "fp16", "float") if name in model.forms][:1]
        found += [path for kind, path in model.files.items() if kind == "labels"]
    return found


# A pipeline file on a board with a DLA.
#
# A DLA needs a placement, scales and rewritten models, which a bundle has. So a bundle for this board is built once in
# the cache, by the same steps as any other. Only models are taken from it; all else is that of the pipeline file.


@contextmanager
def built_here(
    file: PipelineFile,
    *,
    strict: bool = False,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Unpacked | None]:
    """Build the models of a pipeline for this board's DLA; their files exist inside the block.

    Yields:
        The pipeline with the models of a bundle and their engines. None if ``engines:`` does not name ``tensorrt-dla``
            or this machine cannot run it, so that the pipeline is run unchanged.

    Raises:
        EdgertError: as :func:`~edgert.compiler.build_pipeline.build` and :func:`~edgert.compiler.unpack.unpacked`.
    """
    here, trt = machine or detect(), trt or TrtBackend()
    if TENSORRT_DLA not in file.config.engines or why_not(TENSORRT_DLA, here, trt):
        yield None
        return
    pipeline = file.document.path  # one bundle for each pipeline file
    digest = hashlib.sha256(str(pipeline.resolve()).encode()).hexdigest()[:16]
    path = cache_folder() / "here" / f"{pipeline.stem}-{digest}{SUFFIX}"
    known = here.board is not None and here.mode in {mode.name for mode in here.board.modes}
    mode = here.mode if known else None  # None: the usual mode
    build(file, path, board=here.name, mode=mode, tensorrt=trt.library.version, on_progress=on_progress)
    with unpacked(path, strict=strict, machine=here, trt=trt, on_progress=on_progress) as found:
        config = file.config.model_copy(update={"models": found.file.config.models})
        yield replace(found, file=replace(file, config=config))


# Tuned settings of a bundle that are valid on this machine, as keys of the pipeline file.


@dataclass(frozen=True, slots=True)
class BundleTuning:
    """Tuned settings of a bundle that are valid on this machine.

    Attributes:
        overrides: ``key.path=value`` strings, as for ``--set``.
        members: forms that the tuned models run, which can differ from those of the bundle's pipeline file.
        report: line for each tuned model: its settings, or why they are not valid here.
    """

    overrides: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    report: tuple[str, ...] = ()


def tuning_of(bundle: Bundle, file: PipelineFile) -> BundleTuning:
    """Return a bundle's tuned settings.

    They are valid on the machine and with the packages they were measured with, and either for cameras or for files.
    Elsewhere the default engine runs, which is reported.

    Args:
        bundle: the bundle.
        file: the bundle's pipeline, with the user's overrides.

    Raises:
        ArtifactError: settings cannot be read.
    """
    found = {name: one for name in bundle.manifest.models if (one := tuned_model(bundle, name)) is not None}
    if not found:
        return BundleTuning()
    machine, live = identity(), is_live(file)
    keys, members, report = list[str](), list[str](), list[str]()
    for name, tuned in found.items():
        if wrong := _why_not_here(tuned, machine, live):
            again = "edgert build PIPELINE --tune tunes it again"
            report.append(f"model {name}: {wrong}; the default engine runs. {again}")
            continue
        form = bundle.manifest.models[name].forms[tuned.chosen.form]
        keys += overrides(name, tuned.chosen, form, batching_stages(file.config, name))
        members.append(form)
        report.append(f"model {name} runs as tuned: {tuned.summary}")
    return BundleTuning(tuple(keys), tuple(members), tuple(report))


def tuned_model(bundle: Bundle, name: str) -> Tuned | None:
    """Return the result of the search for a model of a bundle; None if it was not tuned.

    Raises:
        ArtifactError: the result cannot be read.
    """
    member = bundle.manifest.models[name].files.get("tune")
    if member is None:
        return None
    what, where = f"cannot read how model {name!r} was tuned", f"{bundle.path} {member}"
    fix = "build the bundle again with this edgert: edgert build PIPELINE --tune"
    damage = (KeyError, TypeError, ValueError, AttributeError)
    with raised_as(ArtifactError, what, of=damage, where=where, fix=fix):
        return tuned_of(json.loads(bundle.read(member)))


def _why_not_here(tuned: Tuned, machine: Mapping[str, str], live: bool) -> str:
    """Return why tuned settings are not valid for a machine and kind of source; empty if they are."""
    changed = difference(tuned.machine, machine)
    if changed:
        return f"tuned on another machine or with other packages ({changed})"
    kinds = ("files", "cameras")
    return "" if tuned.live == live else f"tuned for {kinds[tuned.live]}, and this runs on {kinds[live]}"
