"""The process of its own that converts a model: what is asked of it and what it gives, as files in a folder.

Nothing is pickled. A framework's threads, memory and crashes stay in it; nothing of edgert is imported there that needs
another package, so that it may be any Python that has the framework.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.errors import BuildError, DeviceError, EdgertError, cause, error_of

Array = npt.NDArray[Any]
MODEL, FEEDS, RESULTS = "model.onnx", "feeds.npz", "results.npz"
OTHER_FEEDS, OTHER_RESULTS = "other_feeds.npz", "other_results.npz"
"""A second example, where the model is the record of one run."""
_REQUEST, _VERSIONS, _ERROR, _EXPORTER = "request.json", "versions.json", "error.json", "exporter.json"


@dataclass(frozen=True, slots=True)
class Request:
    """One conversion.

    Attributes:
        kind, source: see :class:`~edgert.importer.conversion.Source`.
        search: folder that ``module:function`` is looked for in.
        opset: version of the ONNX operators.
        dynamic: input → a name for each dimension that stays open, None for the others (``function`` only).
        weights: of a model by name: ``DEFAULT``, another name that its package has, or ``random``.
        size: width and height of the example image of a model by name; None: its own.
    """

    kind: str
    source: str
    search: str = "."
    opset: int = 18
    dynamic: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    weights: str = "DEFAULT"
    size: Sequence[int] | None = None


def write_request(request: Request, folder: Path) -> None:
    """Write a request."""
    _write(folder / _REQUEST, asdict(request))


def read_request(folder: Path) -> Request:
    """Read a request."""
    return Request(**(_read(folder / _REQUEST) or {}))


def write_error(error: EdgertError, folder: Path) -> None:
    """Write why it cannot be converted."""
    _write(folder / _ERROR, error.to_json())


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write named arrays, in order; names may have any characters."""
    stored: dict[str, Any] = {f"a{n}": array for n, array in enumerate(arrays.values())}
    np.savez(path, __names__=np.array(list(arrays), dtype=np.str_), **stored)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read what :func:`write_arrays` wrote, or a user's .npz, by its names."""
    with np.load(path, allow_pickle=False) as stored:
        if "__names__" not in stored:
            return {name: stored[name] for name in stored.files}
        return {str(name): stored[f"a{n}"] for n, name in enumerate(stored["__names__"])}


def write_versions(versions: Mapping[str, str], folder: Path) -> None:
    """Write package → version of the converters; last, so that a folder with it is complete."""
    _write(folder / _VERSIONS, dict(versions))


def read_versions(folder: Path) -> dict[str, str] | None:
    """Return the versions; None where the conversion did not finish."""
    return _read(folder / _VERSIONS)


def write_exporter(name: str, folder: Path) -> None:
    """Write which exporter made the model."""
    _write(folder / _EXPORTER, {"exporter": name})


def read_exporter(folder: Path) -> str:
    """Return which exporter made the model; empty where there is only one."""
    return str((_read(folder / _EXPORTER) or {}).get("exporter", ""))


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


_PACKAGE = Path(__file__).resolve().parents[1]
_QUIET = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # no code out of pickles: a program's tensors are all that is read
    "CUDA_VISIBLE_DEVICES": "",  # one example: the start of a GPU would take longer
}


def converted(request: Request, folder: Path, python: Path | None = None) -> dict[str, str]:
    """Convert in another process. Blocks until done.

    Args:
        request: what to convert.
        folder: gets the model, the example inputs and the source's outputs.
        python: the interpreter; this one by default.

    Returns:
        Package → version of the converters.

    Raises:
        DeviceError: the framework is not installed there, or the interpreter cannot be run.
        ModelError, BuildError: the source cannot be read, or not converted; or the process crashed.
    """
    write_request(request, folder)
    interpreter = str(python or sys.executable)
    with tempfile.TemporaryDirectory(prefix="edgert-") as path:
        # edgert as it is here, and none of the packages beside it: those of another Python do not fit
        (Path(path) / "edgert").symlink_to(_PACKAGE, target_is_directory=True)
        path_here = [] if python else filter(None, [os.environ.get("PYTHONPATH")])
        environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join([path, *path_here])}
        command = [interpreter, "-m", "edgert.importer.torch_model", str(folder)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError as error:
            raise DeviceError(f"cannot run {interpreter!r}", why=cause(error), fix="--python PATH") from error
    versions, failed = read_versions(folder), _read(folder / _ERROR)
    if failed is not None:
        raise error_of(failed)
    if done.returncode or versions is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise BuildError(
            f"{request.source} cannot be converted",
            why=lines[-1] if lines else f"the process ended with {done.returncode}",
            where="\n         ".join(lines[-6:-1]),
            fix="repair what the last lines name; the tools of the framework may show more",
        )
    return versions
