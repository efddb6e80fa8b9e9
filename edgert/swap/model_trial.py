"""The first runs of a new model in a child process, so that a crash, hang or lack of memory ends only that.

python -m edgert.swap.model_trial < request.json       prints the result as JSON
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgert import installation, meters
from edgert.errors import BuildError, EdgertError

LONGEST_S = 120.0
_RUNS, _POLL_S, _NICE = 3, 0.1, 10
_KIB = 1024


def measure_memory(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    ops: Sequence[Path],
    room_bytes: int,
    cancel: threading.Event,
) -> int | None:
    """Run a model a few times on ONNX Runtime in a child process; return its growth in bytes, None where canceled.

    The compiled model stays in the cache, from which the run opens it without a pause for its frames. It may use
    ``room_bytes`` of memory; 0: no limit. Raises EdgertError where it cannot be run.
    """
    request = {"path": str(path), "shapes": {name: list(shape) for name, shape in shapes.items()},
               "ops": [str(one) for one in ops], "room_bytes": room_bytes}  # fmt: skip
    what = f"{path.name} failed in a process of its own"
    try:
        process = subprocess.Popen(  # our own module, run by our own interpreter
            [sys.executable, "-m", "edgert.swap.model_trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # operators may print
            env={**os.environ, "PYTHONPATH": installation.python_path()},
        )
    except OSError as error:
        raise BuildError("cannot start a process to try the model", why=str(error)) from error
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has ended, which its exit code explains
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
            until_s = time.monotonic() + LONGEST_S
            while process.poll() is None:
                if cancel.wait(_POLL_S):
                    return None
                if time.monotonic() > until_s:
                    raise BuildError(what, why=f"it did not end within {LONGEST_S:g} s")
        finally:
            process.kill()
        lines = process.stdout.read().decode("utf-8", "replace").splitlines()
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise BuildError(what, why=f"it ended by {name}, as when an operator crashes or memory runs out")
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"why": f"exit code {process.returncode}"}
    if "why" in found:
        raise BuildError(what, why=found["why"])
    return int(found["memory_bytes"])


def _main(request: Mapping[str, Any]) -> dict[str, Any]:
    os.nice(_NICE)
    import numpy as np

    from edgert.backend.ort.runtime import ort
    from edgert.custom_op import load_operators
    from edgert.engine import load_engine
    from edgert.graph import load

    random = np.random.default_rng(0)
    try:
        ort()
        load_operators([Path(one) for one in request["ops"]])
        before_bytes = meters.rss_bytes()
        _limit_memory(request["room_bytes"])
        engine = load_engine(load(request["path"]), shapes=request["shapes"], threads=1, backend="ort")
        session = engine.session()
        for _ in range(_RUNS):
            for array in session.inputs.values():
                array[...] = random.random(array.shape) * (1 if array.dtype.kind == "f" else 100)
            session.run()
    except EdgertError as error:
        return {"why": ": ".join(filter(None, (error.what, error.why)))}
    except MemoryError:
        return {"why": "it needs more memory than it may use"}
    except Exception as error:  # noqa: BLE001 - operators of the user may raise anything
        return {"why": f"{type(error).__name__}: {error}"}
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return {"memory_bytes": max(most_bytes - before_bytes, 0)}


def _limit_memory(room_bytes: int) -> None:
    if room_bytes:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most_bytes = pages * resource.getpagesize() + room_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


if __name__ == "__main__":
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what operators print must not fill the pipe of the answer
    answer.write(json.dumps(_main(json.load(sys.stdin))))
    answer.close()
