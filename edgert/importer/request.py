"""What is asked of a conversion and what it gives, as files in a folder that two processes share. No pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MODEL, FEEDS, RESULTS = "model.onnx", "feeds.npz", "results.npz"
_REQUEST, _TOLD, _ERROR = "request.json", "told.json", "error.json"


@dataclass(frozen=True, slots=True)
class Request:
    """One conversion.

    Attributes:
        kind, source: see :class:`~edgert.importer.source.Source`.
        search: folder that ``module:function`` is looked for in.
        opset: version of the ONNX operators.
        shapes: input → shape of the example, where the source leaves sizes open and has no example.
        dynamic: input → a name for each dimension that stays open, None for the others (``function`` only).
        signature: of a SavedModel.
    """

    kind: str
    source: str
    search: str = "."
    opset: int = 18
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dynamic: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    signature: str = "serving_default"


def write_request(request: Request, folder: Path) -> None:
    """Writes a request."""
    (folder / _REQUEST).write_text(json.dumps(asdict(request)), encoding="utf-8")


def read_request(folder: Path) -> Request:
    """Reads it."""
    return Request(**json.loads((folder / _REQUEST).read_text(encoding="utf-8")))


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Named arrays, in order, whatever characters the names have."""
    stored: dict[str, Any] = {f"a{n}": array for n, array in enumerate(arrays.values())}
    np.savez(path, __names__=np.array(list(arrays), dtype=np.str_), **stored)


def read_arrays(path: Path) -> dict[str, Array]:
    """What :func:`write_arrays` wrote, or a .npz of the user's own, by its names."""
    with np.load(path, allow_pickle=False) as stored:
        if "__names__" not in stored:
            return {name: stored[name] for name in stored.files}
        return {str(name): stored[f"a{n}"] for n, name in enumerate(stored["__names__"])}


def write_told(told: Mapping[str, str], folder: Path) -> None:
    """Versions of what converted it; written last, so that a folder that has it has all."""
    (folder / _TOLD).write_text(json.dumps(dict(told)), encoding="utf-8")


def read_told(folder: Path) -> dict[str, str] | None:
    """None where the conversion did not come to its end."""
    path = folder / _TOLD
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def write_error(error: Mapping[str, Any], folder: Path) -> None:
    """An error that edgert explains, as plain data."""
    (folder / _ERROR).write_text(json.dumps(dict(error)), encoding="utf-8")


def read_error(folder: Path) -> dict[str, Any] | None:
    """None where there is none."""
    path = folder / _ERROR
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
