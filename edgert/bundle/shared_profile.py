"""A file of a board's measurements to share with others: ``edgert bench BUNDLE --share FILE``.

It names the board, its mode and clocks, and the software. For each model it has digests, and times of engines and
layers. It contains no machine, user, path, address or serial number, and no name of a model, a node or a stage. Nodes
are numbered in the order of the plan. :func:`check_figures` compares it with the limits of the board.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgert.board.record import Board, board, board_names
from edgert.board.sections import Mode, Precision
from edgert.errors import ArtifactError, ConfigError, nearest, raised_as
from edgert.installation import data_folder
from edgert.quantiles import AT, check_quantiles
from edgert.text_files import read_text

FORMAT, SCHEMA = "edgert measured profile", 1
LAYERS_OVER_WHOLE = (0.1, 1.5)
"""Possible range of the sum of layer times, relative to the time of a run.

While layers are timed, each waits for the one before it, so their sum may be larger than a run. Copies of inputs and
outputs, and launches, may take most of a small network's time."""
_TOLERANCE = 0.01
"""Relative tolerance for clocks in files, which are rounded."""
_CLOCKS = ("cpu_mhz", "gpu_mhz", "emc_mhz", "dla_mhz")
_ACCELERATORS = ("dla0", "dla1")
_FIX = "measure again: edgert bench BUNDLE --share FILE, on the board"

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+-]{0,31}$")]
_Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


NodeId = TypeVar("NodeId", int, str)


class Layer(_Part, Generic[NodeId]):
    """Layer of an engine: its nodes, none if unknown, its time, and whether it only copies or converts a tensor."""

    nodes: list[NodeId]
    median_ms: float
    reformat: bool = False


class Engine(_Part, Generic[NodeId]):
    """Engine of a model.

    Attributes:
        placement: nodes by DLA core; other nodes ran on the GPU.
        runs: number of runs behind the median.
        median_ms: median time of a run from host to host, alone on the board.
        quantiles: times of runs relative to their median, at :data:`edgert.quantiles.AT`; empty if not measured.
        layers: layers in execution order; empty if not timed.
    """

    placement: dict[str, list[NodeId]]
    runs: _Count
    median_ms: float
    quantiles: list[float] = Field(default_factory=list)
    layers: list[Layer[NodeId]] = Field(default_factory=list)


def with_nodes(engine: Engine[Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of an engine with other names of its nodes, without nodes that have none."""
    placed = {where: sorted(names[node] for node in own if node in names) for where, own in engine.placement.items()}
    return {
        **{key: getattr(engine, key) for key in Engine.model_fields},
        "placement": {where: own for where, own in sorted(placed.items()) if own},
        "layers": [
            {**dict(one), "nodes": [names[node] for node in one.nodes if node in names]} for one in engine.layers
        ],
    }


class Model(_Part):
    """A model and its engines.

    Attributes:
        digest: digest of the ONNX file.
        structure: digest of the graph without weights and names, which do not affect the speed.
        precision: precision of the engines.
        frames: number of frames in a run.
        nodes: number of nodes in the graph.
        macs: number of multiply-adds in a run.
        engines: timed engines.
    """

    digest: _Digest
    structure: _Digest
    precision: Precision
    frames: _Count
    nodes: _Count
    macs: Annotated[int, Field(ge=0)]
    engines: Annotated[list[Engine[int]], Field(min_length=1)]


class Stage(_Part):
    """CPU time of stages of a kind for a frame of this size, the mean of ``results`` results."""

    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,16}$")]
    megapixels: Annotated[float, Field(ge=0, le=1000)]
    ms: float
    results: _Count


class Software(_Part):
    """Versions of software; empty if unknown."""

    edgert: _Version
    jetpack: _Version | Literal[""] = ""
    tensorrt: _Version | Literal[""] = ""


class SharedProfile(_Part):
    """Contents of the file without its digest.

    Attributes:
        board: name of a board that edgert knows.
        mode: power mode of the board.
        clocks: limits of clocks in MHz by key of a mode; those of the mode if they could not be read.
    """

    board: str
    mode: str
    clocks: dict[str, float]
    software: Software
    models: Annotated[list[Model], Field(min_length=1)]
    stages: list[Stage] = Field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data with its digest. Equal profiles have equal files."""
        content = {"format": FORMAT, "schema": SCHEMA, **self.model_dump(mode="json")}
        return {**content, "digest": _digest(content)}


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in content.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_shared_profile(path: Path) -> bool:
    """Return whether the ``format`` of a file is that of a shared profile."""
    try:
        content = json.loads(read_text(path))
    except (ConfigError, OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def read_shared_profile(path: Path) -> SharedProfile:
    """Read and check a profile.

    Raises:
        ArtifactError: the file is missing or damaged, was changed since it was written, or has impossible figures. The
            error is about the first of these; the others are in ``others``.
        ConfigError: the file is too long, or no text.
    """
    with raised_as(ArtifactError, f"cannot read profile {path}", of=(OSError, ValueError, RecursionError), fix=_FIX):
        content = json.loads(read_text(path))
    where = str(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("schema") != SCHEMA:
        why = f'"format" is not "{FORMAT}", or "schema" not {SCHEMA}'
        raise ArtifactError("edgert cannot read this as a shared profile", why=why, where=where, fix=_FIX)
    plain = {key: value for key, value in content.items() if key not in ("format", "schema", "digest")}
    try:
        found = SharedProfile.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        what = f"wrong value in a shared profile at {key}"
        raise ArtifactError(what, why=first["msg"], where=where, fix=_FIX) from error
    if content.get("digest") != _digest(content):
        raise ArtifactError(
            "the shared profile was changed since it was written",
            why="its digest is not that of its content",
            where=where,
            fix=_FIX,
        )
    check_figures(found, where)
    return found


@cache
def shipped_profiles() -> tuple[SharedProfile, ...]:
    """Return the profiles in ``configs/costs``. Raises ArtifactError for one with impossible figures."""
    return tuple(map(read_shared_profile, sorted((data_folder("configs") / "costs").glob("*.json"))))


def check_figures(profile: SharedProfile, where: str) -> None:
    """Raise ArtifactError for the first figure that the board cannot have measured, with the rest in ``others``."""
    errors = [ArtifactError(what, why=why, where=f"{where} {key}", fix=_FIX) for key, what, why in _mistakes(profile)]
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]


Mistake = tuple[str, str, str]
"""Key, description and reason of a mistake."""


def _mistakes(profile: SharedProfile) -> Iterator[Mistake]:
    if profile.board not in board_names():
        why = f"boards: {', '.join(board_names())}{nearest(profile.board, board_names())}"
        yield "board", f"the profile is of board {profile.board!r}, which edgert does not know", why
        return
    at = board(profile.board)
    if not at.has_mode(profile.mode):
        names = ", ".join(mode.name for mode in at.modes)
        yield "mode", f"{at.name} has no power mode {profile.mode!r}", f"modes: {names}"
        return
    mode = at.mode(profile.mode)
    yield from _clock_mistakes(profile.clocks, at, mode)
    for number, model in enumerate(profile.models):
        for place, engine in enumerate(model.engines):
            key = f"models.{number}.engines.{place}"
            yield from _placement_mistakes(engine, model, mode, key)
            yield from _time_mistakes(engine, key)
            if not {"sms", "gpu_mhz"} & set(mode.estimated):
                yield from _speed_mistakes(engine, model, at, mode.model_copy(update=profile.clocks), key)
    for number, stage in enumerate(profile.stages):
        if stage.ms <= 0:
            what = f"a stage of kind {stage.kind!r} takes {stage.ms:g} ms"
            yield f"stages.{number}.ms", what, "a time must be above 0"


def _clock_mistakes(clocks: Mapping[str, float], at: Board, mode: Mode) -> Iterator[Mistake]:
    """Yield clocks above the limits of the board or the mode, except for limits that are only estimated."""
    most = {"cpu_mhz": at.cpu.max_mhz, "gpu_mhz": at.gpu.max_mhz, "emc_mhz": at.memory.emc_max_mhz}
    most["dla_mhz"] = at.dla.max_mhz
    for key, mhz in clocks.items():
        is_guess = key in mode.estimated
        chip, own = (None, None) if is_guess else (most.get(key), getattr(mode, key, None))
        if key not in _CLOCKS:
            yield f"clocks.{key}", f"there is no clock {key!r}", f"clocks: {', '.join(_CLOCKS)}"
        elif mhz <= 0:
            yield f"clocks.{key}", f"{key} is {mhz:g} MHz", "a clock must be above 0"
        elif chip is not None and mhz > chip * (1 + _TOLERANCE):
            yield f"clocks.{key}", f"{key} {mhz:g} is too high for {at.name}", f"at most {chip:g}"
        elif own is not None and mhz > own * (1 + _TOLERANCE):
            yield f"clocks.{key}", f"{key} {mhz:g} is too high for mode {mode.name}", f"at most {own:g}"


def _placement_mistakes(engine: Engine[int], model: Model, mode: Mode, key: str) -> Iterator[Mistake]:
    cores = _ACCELERATORS[: mode.dla_cores]
    for name in engine.placement:
        if name not in cores:
            why = f"DLA cores of this mode: {', '.join(cores) or 'none'}"
            yield f"{key}.placement", f"it places nodes on {name!r}", why
    numbers = [*(n for own in engine.placement.values() for n in own), *(n for one in engine.layers for n in one.nodes)]
    unknown = [number for number in numbers if not 0 <= number < model.nodes]
    if unknown:
        yield key, f"it names node {unknown[0]} of a model with {model.nodes} nodes", "nodes are numbered from 0"


def _time_mistakes(engine: Engine[int], key: str) -> Iterator[Mistake]:
    if engine.median_ms <= 0:
        yield f"{key}.median_ms", f"a run takes {engine.median_ms:g} ms", "a time must be above 0"
        return
    for number, layer in enumerate(engine.layers):
        if layer.median_ms < 0:
            yield f"{key}.layers.{number}", f"a layer takes {layer.median_ms:g} ms", "a time cannot be negative"
            return
    total = sum(layer.median_ms for layer in engine.layers)
    least, most = (part * engine.median_ms for part in LAYERS_OVER_WHOLE)
    if engine.layers and not least <= total <= most:
        what = f"its layers take {total:g} ms in a run of {engine.median_ms:g} ms"
        yield f"{key}.layers", what, f"that contradicts the total: {least:g} to {most:g} ms are possible"
    try:
        check_quantiles(tuple(engine.quantiles))
        if engine.quantiles and not math.isclose(engine.quantiles[AT.index(0.5)], 1.0, abs_tol=1e-3):
            raise ValueError("the quantile of the median must be 1")
    except ValueError as error:
        yield f"{key}.quantiles", "its quantiles are impossible", str(error)


def _speed_mistakes(engine: Engine[int], model: Model, at: Board, mode: Mode, key: str) -> Iterator[Mistake]:
    """Yield a run that is faster than the peak of its accelerators at their clocks."""
    rate = at.gpu_tops(mode, model.precision) or at.gpu_tops(mode, "fp16")
    if rate is None or engine.median_ms <= 0:
        return
    cores = [core for core, name in enumerate(_ACCELERATORS[: mode.dla_cores]) if name in engine.placement]
    tops = rate + sum(
        at.dla_tops(mode, model.precision, core) or at.dla_tops(mode, "int8", core) or 0 for core in cores
    )
    reached = 2 * model.macs / engine.median_ms / 1e9
    if reached > tops * (1 + _TOLERANCE):
        what = f"{reached:.3g} TOPS in {model.precision.upper()}, above the peak of {at.name} in {mode.name}"
        yield f"{key}.median_ms", what, f"{model.macs} multiply-adds in {engine.median_ms:g} ms; the peak is {tops:.3g}"
