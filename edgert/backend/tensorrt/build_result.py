"""What a build gives and reports, and how its request and result travel between processes: as files of a folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from edgert.backend.base import Span
from edgert.backend.tensorrt.build_request import BuildRequest, Format, Pools
from edgert.backend.tensorrt.log import Kind, LogRecord
from edgert.backend.tensorrt.network import Layer
from edgert.errors import BuildError, EdgertError, error_of

# The error of a build that TensorRT began and did not finish: with other settings it may succeed.


class CompileError(BuildError):
    """TensorRT's compiler failed, or crashed.

    Attributes:
        log: its lines.
    """

    log: Sequence[LogRecord] = ()


# What a build gives, and reports while it runs.


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a phase; phases are nested.

    Attributes:
        phase: what TensorRT calls it.
        parent: the phase it is part of, empty for none.
        step, steps: how far it is; ``step == steps`` ends it.
    """

    phase: str
    parent: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """An engine and how it came about.

    Attributes:
        plan: the serialized engine.
        timing_cache: what was measured, for the next build; empty where this TensorRT measures nothing.
        log: TensorRT's lines, without the verbose lines that mean nothing to edgert.
        inspector: its own JSON about the engine's layers; empty where the engine cannot be opened, as without a GPU.
        layers: of the network that TensorRT's parser made.
        refused: nodes placed on a DLA whose layers TensorRT reports it cannot run there, before building.
        library: ``TensorRT 10.3.0``.
        seconds: spent building.
    """

    plan: bytes
    timing_cache: bytes
    log: tuple[LogRecord, ...]
    inspector: str
    layers: tuple[Layer, ...]
    refused: tuple[str, ...]
    library: str
    seconds: float


_REQUEST, _RESULT, _ERROR = "request.json", "result.json", "error.json"
_BYTES = {"model": "model.onnx", "timing_cache": "timing.in"}

_MADE = {"plan": "plan.bin", "timing_cache": "timing.out"}


def write_request(request: BuildRequest, folder: Path) -> None:
    """Writes a request. Raises BuildError."""
    for name, file in _BYTES.items():
        _write(folder / file, getattr(request, name))
    plain = {item.name: getattr(request, item.name) for item in fields(request) if item.name not in _BYTES}
    plain["pools"] = asdict(request.pools)
    plain["formats"] = {name: asdict(form) for name, form in request.formats.items()}
    plain["profiles"] = [{name: asdict(span) for name, span in one.items()} for one in request.profiles]
    plain |= {"placement": dict(request.placement), "nodes": dict(request.nodes)}
    _write(folder / _REQUEST, json.dumps(plain).encode())


def read_request(folder: Path) -> BuildRequest:
    """Reads what :func:`write_request` wrote."""
    plain = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    given = {name: (folder / file).read_bytes() for name, file in _BYTES.items()}
    made = {
        "nodes": {name: tuple(outputs) for name, outputs in plain["nodes"].items()},
        "fp16_nodes": tuple(plain["fp16_nodes"]),
        "compute": tuple(plain["compute"]),
        "operators": tuple(plain["operators"]),
        "pools": Pools(**plain["pools"]),
        "formats": {name: Format(**form) for name, form in plain["formats"].items()},
        "profiles": tuple({name: _span(span) for name, span in one.items()} for one in plain["profiles"]),
    }
    return BuildRequest(**{**plain, **given, **made})


def write_result(result: BuildResult, folder: Path) -> None:
    """Writes a result; its JSON last, so that a folder that has it has all. Raises BuildError."""
    for name, file in _MADE.items():
        _write(folder / file, getattr(result, name))
    _write(folder / _RESULT, json.dumps(plain_result(result)).encode())


def plain_result(result: BuildResult) -> dict[str, Any]:
    """A result as plain data, without its plan and timing cache."""
    return {
        "log": [asdict(record) for record in result.log],
        "layers": [asdict(layer) for layer in result.layers],
        "refused": list(result.refused),
        "inspector": result.inspector,
        "library": result.library,
        "seconds": result.seconds,
    }


def result_of(plain: Mapping[str, Any], plan: bytes, timing_cache: bytes = b"") -> BuildResult:
    """The result that :func:`plain_result` gave. Raises BuildError for a log of another edgert."""
    made = {
        "log": tuple(map(record_of, plain["log"])),
        "layers": tuple(_layer(layer) for layer in plain["layers"]),
        "refused": tuple(plain["refused"]),
    }
    return BuildResult(**{**plain, **made, "plan": plan, "timing_cache": timing_cache})


def read_result(folder: Path) -> BuildResult | None:
    """Reads a result; None where the folder has none."""
    path = folder / _RESULT
    if not path.exists():
        return None
    given = {name: (folder / file).read_bytes() for name, file in _MADE.items()}
    return result_of(json.loads(path.read_text(encoding="utf-8")), **given)


def write_error(error: EdgertError, folder: Path) -> None:
    """Writes an error that edgert explains."""
    _write(folder / _ERROR, json.dumps(error.to_json()).encode())


def read_error(folder: Path) -> EdgertError | None:
    """Reads it as an error of the same class; None where there is none."""
    path = folder / _ERROR
    return error_of(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def record_of(plain: Mapping[str, str]) -> LogRecord:
    """A log record from its JSON. Raises BuildError for a kind that there is not."""
    if plain["kind"] not in get_args(Kind):
        raise BuildError(f"no kind of log record {plain['kind']!r}", why="it was written by another edgert")
    return LogRecord(plain["severity"], plain["text"], plain["kind"], plain["layer"])  # type: ignore[arg-type]


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BuildError(
            "there is no room for a build",
            why=str(error),
            where=str(path),
            fix="free some space, or point TMPDIR at a folder that has some",
        ) from error


def _span(plain: Mapping[str, list[int]]) -> Span:
    return Span(*(tuple(plain[name]) for name in ("least", "usual", "most")))


def _layer(plain: Mapping[str, Any]) -> Layer:
    return Layer(**{**plain, "inputs": tuple(plain["inputs"]), "outputs": tuple(plain["outputs"])})
