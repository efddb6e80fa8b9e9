"""Times of engines and layers that were measured on the board where a bundle was finished."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgert.bundle.bundle import Bundle, is_bundle, open_bundle
from edgert.bundle.manifest import CompiledEntry, EngineChecks, EngineEntry
from edgert.errors import ArtifactError, ConfigError

GPU = "gpu"


@dataclass(frozen=True, slots=True)
class MeasuredLayer:
    """Measured time of one layer of an engine.

    Attributes:
        nodes: ONNX nodes of the layer; empty if they are unknown, or the layer runs none.
        median_ms: median time of the layer in a run, in milliseconds.
        is_reformat: whether the layer only changes the layout of a tensor, or copies it to another accelerator.
    """

    nodes: tuple[str, ...]
    median_ms: float
    is_reformat: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """Measured times of an engine.

    Attributes:
        model: name of the model in the pipeline file.
        digest: digest of the ONNX file that the engine was built from.
        board: name of the board that ran the engine.
        mode: power mode of the board.
        placement: actual accelerators of nodes that did not run on the GPU.
        median_ms: median time of a run from host to host, alone on the board.
        runs: number of runs behind the median.
        layers: layers in execution order; empty if they were not timed.
        precision: precision of the engine, ``fp32``, ``fp16`` or ``int8``; empty if it is unknown.
        frames: number of frames in a run.
        clocks: clocks in MHz that were set below those of the mode, by key of the mode.
        quantiles: times of runs relative to their median (:mod:`edgert.quantiles`); empty if they are unknown.
    """

    model: str
    digest: str
    board: str
    mode: str
    placement: Mapping[str, str]
    median_ms: float
    runs: int
    layers: tuple[MeasuredLayer, ...] = ()
    precision: str = ""
    frames: int = 1
    clocks: Mapping[str, float] = field(default_factory=dict)
    quantiles: tuple[float, ...] = ()

    def check(self, digest: str, where: str) -> None:
        """Raise ConfigError if the engine was built from another file than that with this digest."""
        if digest != self.digest:
            raise ConfigError(
                f"the profile is of another model {self.model!r}",
                why=f"it was measured on {self.digest[:12]}…, the file is {digest[:12]}…",
                where=where,
                fix="build the bundle of this file, and finish it on the board: edgert build BUNDLE -o BUNDLE",
            )


def read_measured(path: Path) -> tuple[MeasuredEngine, ...]:
    """Return the timed engines of a bundle.

    Raises:
        ConfigError: there is no such file, or it is no bundle.
        ArtifactError: the bundle is damaged, or none of its engines was timed.
    """
    if not is_bundle(path):
        raise ConfigError(
            f"no times of a board in {str(path)!r}",
            why="it is not a bundle" if path.exists() else "there is no such file",
            where="--profile",
            fix="name a bundle finished on the board (edgert build BUNDLE -o BUNDLE there), or a file of edgert bench "
            "--share; a file of edgert bench --units is for --board host",
        )
    with open_bundle(path) as bundle:
        return tuple(engine for _, engine in timed_engines(bundle))


def timed_engines(bundle: Bundle) -> tuple[tuple[Mapping[str, str], MeasuredEngine], ...]:
    """Return the timed engines of an open bundle, each with facts of its machine.

    Raises:
        ArtifactError: no engine was timed.
    """
    timed = [
        (entry.facts, measured)
        for entry in bundle.manifest.compiled.values()
        for model, engines in entry.engines.items()
        for engine in engines
        if (measured := _measured_engine(bundle, entry, model, engine)) is not None
    ]
    if not timed:
        raise ArtifactError(
            f"no engine of {str(bundle.path)!r} was timed",
            why="it was not finished on a board, or the machine that finished it could not run it",
            where=str(bundle.path),
            fix="on the board: edgert build BUNDLE -o BUNDLE",
        )
    return tuple(timed)


def _measured_engine(bundle: Bundle, entry: CompiledEntry, model: str, engine: EngineEntry) -> MeasuredEngine | None:
    checks = EngineChecks.model_validate_json(bundle.read(engine.checks))
    profile = checks.profile
    if profile is None:
        return None
    misplaced = {node: where for node, _, where, _ in checks.placement.misplaced}
    planned = json.loads(bundle.read(engine.record))["placement"]
    placement = {**planned, **misplaced}  # as requested, except for nodes that TensorRT placed elsewhere
    listed = bundle.manifest.models[model]
    rows = next((one.shape[0] for one in listed.inputs if one.shape), 1)
    return MeasuredEngine(
        model,
        listed.digest,
        entry.facts.get("module", ""),
        entry.facts.get("power mode", ""),
        {node: where for node, where in placement.items() if where != GPU},
        profile.median_ms,
        profile.runs,
        tuple(MeasuredLayer(tuple(one.nodes), one.median_ms, one.moves) for one in checks.layers),
        listed.precision,
        rows if isinstance(rows, int) else 1,
        quantiles=tuple(profile.quantiles),
    )
