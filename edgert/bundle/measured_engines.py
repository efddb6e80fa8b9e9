"""Times of engines and layers that were measured on the board where a bundle was finished."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from edgert.bundle.bundle import Bundle, is_bundle, open_bundle
from edgert.bundle.manifest import CompiledEntry, EngineChecks, EngineEntry
from edgert.bundle.shared_profile import Engine, Layer
from edgert.errors import ArtifactError, ConfigError

GPU = "gpu"


class MeasuredEngine(Engine[str]):
    """Measured times of an engine, with names of nodes.

    Attributes:
        model: name of the model in the pipeline file.
        digest: digest of the ONNX file that the engine was built from.
        board: name of the board that ran the engine.
        mode: power mode of the board.
        precision: precision of the engine, ``fp32``, ``fp16`` or ``int8``; empty if it is unknown.
        frames: number of frames in a run.
        clocks: clocks in MHz that were set below those of the mode, by key of the mode.
    """

    model: str
    digest: str
    board: str
    mode: str
    precision: str = ""
    frames: int = 1
    clocks: dict[str, float] = Field(default_factory=dict)

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
    placement = dict[str, list[str]]()
    for node, where in {**planned, **misplaced}.items():  # as requested, unless TensorRT placed it elsewhere
        placement.setdefault(where, []).append(node)
    placement.pop(GPU, None)
    listed = bundle.manifest.models[model]
    rows = next((one.shape[0] for one in listed.inputs if one.shape), 1)
    return MeasuredEngine(
        model=model,
        digest=listed.digest,
        board=entry.facts.get("module", ""),
        mode=entry.facts.get("power mode", ""),
        placement=placement,
        median_ms=profile.median_ms,
        runs=profile.runs,
        layers=[Layer[str](nodes=one.nodes, median_ms=one.median_ms, reformat=one.moves) for one in checks.layers],
        precision=listed.precision,
        frames=rows if isinstance(rows, int) else 1,
        quantiles=profile.quantiles,
    )
