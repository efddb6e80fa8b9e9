"""A file of a board's measurements that anybody may send to anybody: ``edgert bench BUNDLE --share FILE``.

It names the board, its mode and clocks, and the software. Of each model it has digests, and whole and layer times with
quantiles. It has no machine, user, path, address or serial number, and no name of a model, a node or a stage. Nodes are
numbered in the order of the plan. :func:`check` compares it with the board's own limits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgert.board.record import Board, board, board_names
from edgert.board.sections import Mode, Precision
from edgert.errors import ArtifactError, cause, nearest
from edgert.installation import data_folder
from edgert.quantiles import AT, check_quantiles

FORMAT, SCHEMA = "edgert measured profile", 1
LAYERS_OVER_WHOLE = (0.1, 1.5)
"""Range of the sum of layers, timed one by one, over the whole run.

Each layer waits for the one before it, so that they take longer than together. The rest of a run, copies of inputs and
outputs and launches, may be most of a small network's time."""
_EXACT = 0.01
"""Tolerance for clocks in files, which are rounded."""
_CLOCKS = ("cpu_mhz", "gpu_mhz", "emc_mhz", "dla_mhz")
_ACCELERATORS = ("dla0", "dla1")
_AGAIN = "measure again: edgert bench BUNDLE --share FILE, on the board"

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+-]{0,31}$")]
_Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Layer(_Part):
    """A layer of an engine: the numbers of its nodes, its time, and whether it only moves a tensor."""

    nodes: list[int]
    median_ms: float
    reformat: bool = False


class Engine(_Part):
    """An engine of a model.

    Attributes:
        placement: DLA core → numbers of its nodes; the others ran on the GPU.
        runs: behind the median.
        median_ms: of a run, host to host, alone on the board.
        quantiles: of runs over their median, at :data:`edgert.quantiles.AT`; empty: not measured.
        layers: in order; empty: not timed.
    """

    placement: dict[str, list[int]]
    runs: _Count
    median_ms: float
    quantiles: list[float] = Field(default_factory=list)
    layers: list[Layer] = Field(default_factory=list)


class Model(_Part):
    """A model and its engines.

    Attributes:
        digest: of the ONNX file.
        structure: of its graph without weights and names: networks that differ in those alone are equally fast.
        precision: that engines were built in.
        frames: of a run.
        nodes: number of nodes in its graph.
        macs: multiply-adds of a run.
        engines: that were timed.
    """

    digest: _Digest
    structure: _Digest
    precision: Precision
    frames: _Count
    nodes: _Count
    macs: Annotated[int, Field(ge=0)]
    engines: Annotated[list[Engine], Field(min_length=1)]


class Stage(_Part):
    """Time of a CPU core that stages of a kind took for a frame of so many megapixels, over ``results`` results."""

    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,16}$")]
    megapixels: Annotated[float, Field(ge=0, le=1000)]
    ms: float
    results: _Count


class Software(_Part):
    """Versions; empty where the machine did not show one."""

    edgert: _Version
    jetpack: _Version | Literal[""] = ""
    tensorrt: _Version | Literal[""] = ""


class SharedProfile(_Part):
    """Contents of the file, without its digest.

    Attributes:
        board: a name that edgert has.
        mode: a power mode of the board.
        clocks: caps in MHz, keys of a mode, as they were set; those of the mode where they could not be read.
    """

    board: str
    mode: str
    clocks: dict[str, float]
    software: Software
    models: Annotated[list[Model], Field(min_length=1)]
    stages: list[Stage] = Field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data with a digest of it; equal profiles give equal files."""
        content = {"format": FORMAT, "schema": SCHEMA, **self.model_dump(mode="json")}
        return {**content, "digest": _digest(content)}


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in content.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_shared(path: Path) -> bool:
    """Return whether a file's ``format`` is that of such a profile."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def read_shared(path: Path) -> SharedProfile:
    """Read and check a profile.

    Raises:
        ArtifactError: it is missing, damaged, changed since it was written, or has impossible figures; it is the first
            mistake, with the others in ``others``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"cannot read profile {path}", why=cause(error), fix=_AGAIN) from error
    where = str(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("schema") != SCHEMA:
        why = f'"format" is not "{FORMAT}", or "schema" not {SCHEMA}'
        raise ArtifactError("edgert cannot read this as a shared profile", why=why, where=where, fix=_AGAIN)
    plain = {key: value for key, value in content.items() if key not in ("format", "schema", "digest")}
    try:
        found = SharedProfile.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        what = f"wrong value in a shared profile at {key}"
        raise ArtifactError(what, why=first["msg"], where=where, fix=_AGAIN) from error
    if content.get("digest") != _digest(content):
        raise ArtifactError(
            "the shared profile was changed since it was written",
            why="its digest is not that of its content",
            where=where,
            fix=_AGAIN,
        )
    check(found, where)
    return found


@cache
def shipped() -> tuple[SharedProfile, ...]:
    """Return the profiles in ``configs/costs``; raise ArtifactError for one with impossible figures."""
    return tuple(map(read_shared, sorted((data_folder("configs") / "costs").glob("*.json"))))


# Impossible figures.


def check(profile: SharedProfile, where: str) -> None:
    """Raise ArtifactError for figures that this board cannot have measured: the first, with the rest in ``others``."""
    errors = [ArtifactError(what, why=why, where=f"{where} {key}", fix=_AGAIN) for key, what, why in _wrong(profile)]
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]


Mistake = tuple[str, str, str]
"""A mistake: key, what is wrong, and why."""


def _wrong(profile: SharedProfile) -> Iterator[Mistake]:
    if profile.board not in board_names():
        why = f"boards: {', '.join(board_names())}"
        yield (
            "board",
            f"the profile is of board {profile.board!r}, which edgert does not know",
            why + nearest(profile.board, board_names()),
        )
        return
    at = board(profile.board)
    if not at.has_mode(profile.mode):
        names = ", ".join(mode.name for mode in at.modes)
        yield "mode", f"{at.name} has no power mode {profile.mode!r}", f"modes: {names}"
        return
    mode = at.mode(profile.mode)
    yield from _wrong_clocks(profile.clocks, at, mode)
    for number, model in enumerate(profile.models):
        for place, engine in enumerate(model.engines):
            key = f"models.{number}.engines.{place}"
            yield from _wrong_places(engine, model, mode, key)
            yield from _wrong_times(engine, key)
            if not {"sms", "gpu_mhz"} & set(mode.estimated):
                yield from _too_fast(engine, model, at, mode.model_copy(update=profile.clocks), key)
    for number, stage in enumerate(profile.stages):
        if stage.ms <= 0:
            yield (
                f"stages.{number}.ms",
                f"a stage of kind {stage.kind!r} takes {stage.ms:g} ms",
                "a time must be above 0",
            )


def _wrong_clocks(clocks: Mapping[str, float], at: Board, mode: Mode) -> Iterator[Mistake]:
    """Yield clocks above what the board or the mode allows; values that are only estimated there forbid nothing."""
    most = {"cpu_mhz": at.cpu.max_mhz, "gpu_mhz": at.gpu.max_mhz, "emc_mhz": at.memory.emc_max_mhz}
    most["dla_mhz"] = at.dla.max_mhz
    for key, mhz in clocks.items():
        is_guess = key in mode.estimated
        chip, own = (None, None) if is_guess else (most.get(key), getattr(mode, key, None))
        if key not in _CLOCKS:
            yield f"clocks.{key}", f"there is no clock {key!r}", f"clocks: {', '.join(_CLOCKS)}"
        elif mhz <= 0:
            yield f"clocks.{key}", f"{key} is {mhz:g} MHz", "a clock must be above 0"
        elif chip is not None and mhz > chip * (1 + _EXACT):
            yield f"clocks.{key}", f"{key} {mhz:g} is above what {at.name} can", f"at most {chip:g}"
        elif own is not None and mhz > own * (1 + _EXACT):
            yield f"clocks.{key}", f"{key} {mhz:g} is above what mode {mode.name} allows", f"at most {own:g}"


def _wrong_places(engine: Engine, model: Model, mode: Mode, key: str) -> Iterator[Mistake]:
    cores = _ACCELERATORS[: mode.dla_cores]
    for name in engine.placement:
        if name not in cores:
            yield (
                f"{key}.placement",
                f"it places nodes on {name!r}",
                f"DLA cores of this mode: {', '.join(cores) or 'none'}",
            )
    numbers = [*(n for own in engine.placement.values() for n in own), *(n for one in engine.layers for n in one.nodes)]
    wrong = [number for number in numbers if not 0 <= number < model.nodes]
    if wrong:
        yield key, f"it names node {wrong[0]} of a model with {model.nodes} nodes", "nodes are numbered from 0"


def _wrong_times(engine: Engine, key: str) -> Iterator[Mistake]:
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


def _too_fast(engine: Engine, model: Model, at: Board, mode: Mode, key: str) -> Iterator[Mistake]:
    """Yield a run that is faster than all multipliers of the accelerators that it used, at their clocks."""
    rate = at.gpu_tops(mode, model.precision) or at.gpu_tops(mode, "fp16")
    if rate is None or engine.median_ms <= 0:
        return
    cores = [core for core, name in enumerate(_ACCELERATORS[: mode.dla_cores]) if name in engine.placement]
    tops = rate + sum(
        at.dla_tops(mode, model.precision, core) or at.dla_tops(mode, "int8", core) or 0 for core in cores
    )
    reached = 2 * model.macs / engine.median_ms / 1e9
    if reached > tops * (1 + _EXACT):
        what = f"{reached:.3g} TOPS in {model.precision.upper()}, above the peak of {at.name} in {mode.name}"
        yield f"{key}.median_ms", what, f"{model.macs} multiply-adds in {engine.median_ms:g} ms; the peak is {tops:.3g}"
