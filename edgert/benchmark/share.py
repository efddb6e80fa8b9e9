"""Anonymous shared profile of a board's measurements: ``edgert bench BUNDLE --share FILE``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgert._version import __version__
from edgert.board.detect import HOST, UNKNOWN, Machine, detect, jetpack_of
from edgert.board.host import read_text
from edgert.board.record import board
from edgert.board.sections import Mode
from edgert.bundle import shared_profile
from edgert.bundle.bundle import is_bundle, open_bundle
from edgert.bundle.measured_engines import MeasuredEngine, timed_engines
from edgert.compiler.finish import members_but_engines, pipeline_of
from edgert.config import PipelineFile
from edgert.errors import ConfigError
from edgert.meters.clocks import gpu_gauges
from edgert.planner.planned_model import PlannedModel, planned_models
from edgert.quantiles import AT
from edgert.simulator.board_stages import board_stages
from edgert.simulator.sources import read_stage_times

_CPU_CAPS = "sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq"


def share(bundle: Path, run: Path | None = None, root: Path = Path("/")) -> shared_profile.SharedProfile:
    """Return the measurements of a bundle that was finished on a Jetson.

    Clocks are the present caps if this machine is that board in that mode, and otherwise those of the mode. ``run`` is
    a summary of ``edgert run BUNDLE --json`` there, with times of stages other than models.
    """
    if not is_bundle(bundle):
        raise ConfigError(
            f"cannot share measurements of {str(bundle)!r}",
            why="it is not a bundle" if bundle.exists() else "there is no such file",
            fix="edgert build PIPELINE --board NAME -o BUNDLE; on the board edgert build BUNDLE -o BUNDLE, then "
            "edgert bench BUNDLE --share FILE",
        )
    with open_bundle(bundle) as opened, opened.temporary_folder() as folder:
        facts, engines = _engines_of_one_machine(timed_engines(opened), str(bundle), detect(root))
        opened.extract(folder, members_but_engines(opened.manifest))
        # A bundle's pipeline names forms for this machine, but a plan uses the float model.
        requested = {
            f"models.{name}.{key}": value
            for name, one in opened.manifest.models.items()
            for key, value in (("onnx", one.forms.get("float")), ("precision", one.precision))
        }
        overrides = [f"{key}={json.dumps(value)}" for key, value in requested.items() if value]
        file = pipeline_of(opened.manifest, folder, overrides)
        subjects = {one.demand.model: one for one in planned_models(file)}
        digests = {name: one.digest for name, one in opened.manifest.models.items()}
        stages = _stages(file, engines[0], run) if run is not None else []
    models = [
        _model(subject, digests[name], own)
        for name, subject in subjects.items()
        if (own := [one for one in engines if one.model == name])
    ]
    at = board(engines[0].board)
    found = shared_profile.SharedProfile(
        board=at.name,
        mode=engines[0].mode,
        clocks=_clocks(at.mode(engines[0].mode), detect(root), engines[0], root),
        software=shared_profile.Software(
            edgert=__version__,
            jetpack=jetpack_of(facts.get("L4T", "")).partition(" ")[0],
            tensorrt=facts.get("TensorRT", ""),
        ),
        models=models,
        stages=stages,
    )
    shared_profile.check_figures(found, str(bundle))
    return found


def _engines_of_one_machine(
    found: Sequence[tuple[Mapping[str, str], MeasuredEngine]], where: str, here: Machine
) -> tuple[Mapping[str, str], list[MeasuredEngine]]:
    """Return the engines of one machine, preferably this one; raise ConfigError if the machine is not certain."""
    places = {(one.board, one.mode) for _, one in found}
    if (here.name, here.mode) in places:
        places = {(here.name, here.mode)}
    if len(places) > 1:
        named = ", ".join(sorted(f"{name} in {mode}" for name, mode in places))
        raise ConfigError(
            "the bundle has times of several machines",
            why=f"it was finished on {named}",
            where=where,
            fix="share it on one of them",
        )
    ((name, mode),) = places
    if name in (HOST, UNKNOWN, "") or not mode:
        raise ConfigError(
            "the bundle has times of no known board",
            why=f"the bundle was finished on {name or 'an unknown machine'}, in power mode {mode or 'unknown'}",
            where=where,
            fix="share measurements of a Jetson that edgert boards lists; edgert bench --units is for this machine",
        )
    own = [(facts, one) for facts, one in found if (one.board, one.mode) == (name, mode)]
    return own[-1][0], [one for _, one in own]


def _clocks(mode: Mode, here: Machine, engine: MeasuredEngine, root: Path) -> dict[str, float]:
    keys = ("cpu_mhz", "gpu_mhz", "emc_mhz", *(("dla_mhz",) if mode.dla_cores else ()))
    found = {key: float(getattr(mode, key)) for key in keys if getattr(mode, key) is not None}
    if (here.name, here.mode) == (engine.board, engine.mode):
        gauge = gpu_gauges(root).get("gpu.max_clock")
        gpu_hz = gauge().value if gauge is not None else None
        cpu_khz = max((int(text) for path in root.glob(_CPU_CAPS) if (text := read_text(path)).isdigit()), default=0)
        found |= {"gpu_mhz": gpu_hz / 1e6} if gpu_hz else {}
        found |= {"cpu_mhz": cpu_khz / 1e3} if cpu_khz else {}
    return found


def _model(subject: PlannedModel, digest: str, engines: Sequence[MeasuredEngine]) -> shared_profile.Model:
    numbers = {node.name: number for number, node in enumerate(subject.graph.nodes)}
    return shared_profile.Model(
        digest=digest,
        structure=subject.structure,
        precision=subject.precision,
        frames=engines[0].frames,
        nodes=len(numbers),
        macs=sum(subject.macs.values()),
        engines=[shared_profile.Engine[int](**shared_profile.with_nodes(one, numbers)) for one in engines],
    )


def _stages(file: PipelineFile, engine: MeasuredEngine, run: Path) -> list[shared_profile.Stage]:
    at = board(engine.board)
    known = board_stages(file, at, at.mode(engine.mode), profiles=()).kinds
    times = read_stage_times(run)
    results = {name: one.get("results_in", 0) for name, one in json.loads(run.read_text("utf-8"))["stages"].items()}
    found = [
        shared_profile.Stage(kind=kind, megapixels=round(megapixels, 3), ms=times.of(name), results=results[name])
        for name, (kind, megapixels) in known.items()
        if results.get(name, 0) > 0 and times.of(name) > 0
    ]
    if known and not found:
        raise ConfigError(
            "the summary belongs to another pipeline",
            why=f"it has no times of its stages {', '.join(known)}",
            where=str(run),
            fix="edgert run BUNDLE --json run.json, on the board",
        )
    return found


def lines(found: shared_profile.SharedProfile) -> Iterator[str]:
    """Yield lines that describe a shared profile."""
    clocks = ", ".join(f"{key.removesuffix('_mhz').upper()} {mhz:g} MHz" for key, mhz in found.clocks.items())
    software = (f"JetPack {found.software.jetpack}", f"TensorRT {found.software.tensorrt}")
    versions = ", ".join(text for text in software if not text.endswith(" "))
    yield f"{found.board} in {found.mode}: {clocks}; {versions or 'versions unknown'}"
    for model in found.models:
        for engine in model.engines:
            where = " and ".join(("gpu", *engine.placement))
            p99 = f", p99 {engine.median_ms * engine.quantiles[AT.index(0.99)]:.2f}" if engine.quantiles else ""
            layers = f", {len(engine.layers)} layers" if engine.layers else ""
            yield (
                f"{model.digest[:12]}… {model.precision.upper()} on {where}: {engine.median_ms:.2f} ms{p99} "
                f"({engine.runs} runs of {model.frames} frames{layers})"
            )
    for stage in found.stages:
        yield f"{stage.kind} at {stage.megapixels:g} megapixels: {stage.ms:.2f} ms ({stage.results} results)"
