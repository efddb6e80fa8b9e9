"""The process that converts: any Python that has the framework, with nothing of edgert but its own files in sight."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgert.errors import BuildError, DeviceError, cause, error_of
from edgert.importer.request import Request, read_error, read_told, write_request

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
        own = [] if python else filter(None, [os.environ.get("PYTHONPATH")])  # packages of another Python do not fit
        environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join([path, *own])}
        command = [interpreter, "-m", "edgert.importer.child", str(folder)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError as error:
            raise DeviceError(f"cannot run {interpreter!r}", why=cause(error), fix="--python PATH") from error
    told, failed = read_told(folder), read_error(folder)
    if failed is not None:
        raise error_of(failed)
    if done.returncode or told is None:
        raise _crashed(request, done)
    return told


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
        fix="mend what the last lines name; its own tools may tell more",
    )
