"""The process of its own that converts a model: what is asked of it and what it gives, as files in a folder.

Nothing is pickled. The process may be any Python that has the framework, with nothing else of edgert in sight.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.errors import BuildError, DeviceError, cause, error_of

Array = npt.NDArray[Any]
MODEL, FEEDS, RESULTS = "model.onnx", "feeds.npz", "results.npz"
_REQUEST, _VERSIONS, _ERROR = "request.json", "versions.json", "error.json"


@dataclass(frozen=True, slots=True)
class Request:
    """One conversion.

    Attributes:
        kind, source: see :class:`~edgert.importer.conversion.Source`.
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


def write_versions(versions: Mapping[str, str], folder: Path) -> None:
    """Package → version, of what converted it; written last, so that a folder that has it is complete."""
    (folder / _VERSIONS).write_text(json.dumps(dict(versions)), encoding="utf-8")


def read_versions(folder: Path) -> dict[str, str] | None:
    """None where the conversion did not come to its end."""
    path = folder / _VERSIONS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def write_error(error: Mapping[str, Any], folder: Path) -> None:
    """An error that edgert explains, as plain data."""
    (folder / _ERROR).write_text(json.dumps(dict(error)), encoding="utf-8")


def read_error(folder: Path) -> dict[str, Any] | None:
    """None where there is none."""
    path = folder / _ERROR
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


# The process that converts: any Python that has the framework, with nothing of edgert but its own files in sight.

_PACKAGE = Path(__file__).resolve().parents[1]
_QUIET = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # no code out of pickles: a program's tensors are all that is read
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",  # one example: the start of a GPU would take longer
}


def converted(request: Request, folder: Path, python: Path | None = None) -> dict[str, str]:
    """Converts in another process. Blocks until done.

    Args:
        folder: gets the model, the example inputs and the source's outputs.
        python: the interpreter; this one by default.

    Returns:
        What converted it: package → version.

    Raises:
        DeviceError: the framework is not installed there, or the interpreter cannot be run.
        ModelError, BuildError: the source cannot be read, or not converted; or the process crashed.
    """
    write_request(request, folder)
    interpreter = str(python or sys.executable)
    with _only_edgert() as path:
        path_here = (
            [] if python else filter(None, [os.environ.get("PYTHONPATH")])
        )  # packages of another Python do not fit
        environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join([path, *path_here])}
        command = [interpreter, "-m", "edgert.importer.converter", str(folder)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError as error:
            raise DeviceError(f"cannot run {interpreter!r}", why=cause(error), fix="--python PATH") from error
    versions, failed = read_versions(folder), read_error(folder)
    if failed is not None:
        raise error_of(failed)
    if done.returncode or versions is None:
        raise _crashed(request, done)
    return versions


@contextmanager
def _only_edgert() -> Iterator[str]:
    """A folder for another interpreter's path: edgert as it is here, and none of the packages beside it."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        (Path(folder) / "edgert").symlink_to(_PACKAGE, target_is_directory=True)
        yield folder


def _crashed(request: Request, done: subprocess.CompletedProcess[str]) -> BuildError:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return BuildError(
        f"{request.source} cannot be converted",
        why=lines[-1] if lines else f"the process ended with {done.returncode}",
        where="\n         ".join(lines[-6:-1]),
        fix="repair what the last lines name; the tools of the framework may tell more",
    )
