"""Times measured on the board where a bundle was finished, per engine and per layer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgert.bundle.bundle import Bundle, is_bundle, open_bundle
from edgert.bundle.manifest import CompiledEntry, EngineEntry
from edgert.errors import ArtifactError, ConfigError

GPU = "gpu"


@dataclass(frozen=True, slots=True)
class MeasuredLayer:
    """A layer of an engine.

    Attributes:
        nodes: ONNX nodes in it; empty where they are unknown, or where it runs none.
        median_ms: of a run, by itself.
        is_reformat: whether it only changes the layout of a tensor, or copies it to another accelerator.
    """

    nodes: tuple[str, ...]
    median_ms: float
    is_reformat: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """An engine that ran on a board.

    Attributes:
        model: its name in the pipeline file.
        digest: of the ONNX file that it was built from.
        board: where it ran.
        mode: power mode in which it ran.
        placement: node → accelerator, of those that really were not on the GPU.
        median_ms: of a run, host to host, alone on the board.
        runs: number of runs behind the median.
        layers: in the order they run; empty where they were not timed.
        precision: that it was built in, ``fp32``, ``fp16`` or ``int8``; empty: not known.
        frames: of a run.
        clocks: keys of a mode → MHz, where they were set below those of the mode.
        quantiles: of runs over their median; see :mod:`edgert.quantiles`. Empty: not known.
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
        """Raise ConfigError when it was built from another file than the one that is planned for."""
        if digest != self.digest:
            raise ConfigError(
                f"the profile is of another model {self.model!r}",
                why=f"it was measured on {self.digest[:12]}…, the file is {digest[:12]}…",
                where=where,
                fix="build the bundle of this file, and finish it on the board: edgert build BUNDLE -o BUNDLE",
            )


def read_measured(path: Path) -> tuple[MeasuredEngine, ...]:
    """Return the engines of a bundle that were timed.

    Raises:
        ConfigError: there is no such file, or it is not a bundle.
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
        return tuple(engine for _, engine in engines_of(bundle))


def engines_of(bundle: Bundle) -> tuple[tuple[Mapping[str, str], MeasuredEngine], ...]:
    """Return the engines of an open bundle that were timed, with facts of the machine.

    Raises:
        ArtifactError: none was.
    """
    found = [
        (entry.facts, one)
        for entry in bundle.manifest.compiled.values()
        for model, engines in entry.engines.items()
        for engine in engines
        if (one := _engine(bundle, entry, model, engine)) is not None
    ]
    if not found:
        raise ArtifactError(
            f"no engine of {str(bundle.path)!r} was timed",
            why="it was not finished on a board, or the machine that finished it could not run it",
            where=str(bundle.path),
            fix="on the board: edgert build BUNDLE -o BUNDLE",
        )
    return tuple(found)


def _engine(bundle: Bundle, entry: CompiledEntry, model: str, engine: EngineEntry) -> MeasuredEngine | None:
    checks, record = json.loads(bundle.read(engine.checks)), json.loads(bundle.read(engine.record))
    if "profile" not in checks:
        return None
    misplaced = {node: where for node, _, where, _ in checks["placement"]["misplaced"]}
    placement = {**record["placement"], **misplaced}  # as requested, except what TensorRT placed elsewhere
    entered = bundle.manifest.models[model]
    first = next((one.shape[0] for one in entered.inputs if one.shape), 1)
    return MeasuredEngine(
        model,
        entered.digest,
        entry.facts.get("module", ""),
        entry.facts.get("power mode", ""),
        {node: where for node, where in placement.items() if where != GPU},
        float(checks["profile"]["median_ms"]),
        int(checks["profile"]["runs"]),
        tuple(MeasuredLayer(tuple(one["nodes"]), one["median_ms"], one["moves"]) for one in checks.get("layers", ())),
        entered.precision,
        first if isinstance(first, int) else 1,
        quantiles=tuple(checks["profile"].get("quantiles", ())),
    )
