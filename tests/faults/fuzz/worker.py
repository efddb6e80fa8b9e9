"""One format's cases, in a process of their own and a folder of their own, the current one.

    python -m tests.faults.fuzz.worker FORMAT SEED FIRST [FILE...]

Each case is announced by a line of JSON with its number, and ended by one with what became of it. It runs until it is
killed, or holds much memory; with files, it gives these to the verbs.
"""

import gc
import importlib
import json
import os
import resource
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MEMORY_BYTES = 1 << 30
"""Most that a case may take of memory."""
_ADDRESSES_BYTES = 6 << 30  # libraries reserve more than they use
_DATA_BYTES = 768 << 20
"""What a process is left of its own, as on a small machine: what needs more is to say so."""
_GROWN_BYTES = _DATA_BYTES // 4
"""A process that holds so much more than it began with leaves the next case to another, which has all the room."""
_LIBRARIES = (os.sep + "edgert" + os.sep, os.sep + "dla" + os.sep)
_HERE = (None, "", "localhost", "127.0.0.1", "::1")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def place(error: BaseException) -> str:
    """Kind of error, and the innermost line of the product's own that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if any(part in one.filename for part in _LIBRARIES) and "tests" not in one.filename]
    chosen = (own or list(frames))[-1:]
    at = f"{'/'.join(Path(chosen[0].filename).parts[-3:])}:{chosen[0].lineno}" if chosen else "?"
    return f"{type(error).__name__} {at}"


class Outside:
    """Notes files that are opened for writing, made, moved or deleted outside of a folder, and connections."""

    def __init__(self, folder: Path) -> None:
        self.found: list[str] = []
        self._allowed = (str(folder), "/dev/", "/proc/", "pipe:", "/memfd:")
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            written = [path] if isinstance(flags, int) and flags & _WRITING else []
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.truncate", "os.symlink", "os.link"):
            written = [one for one in arguments[:2] if isinstance(one, (str, bytes, os.PathLike))]
        elif event == "socket.getaddrinfo" and arguments[0] not in _HERE:
            self.found.append(f"looks up {arguments[0]}")
            return
        elif event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in _HERE:
            self.found.append(f"connects to {arguments[1]}")
            return
        else:
            return
        for path in written:
            if not isinstance(path, int):
                full = os.path.realpath(os.fsdecode(path))
                if (
                    not full.startswith(self._allowed)
                    and not full.endswith((".pyc", "__pycache__"))
                    and ".pyc." not in full
                ):
                    self.found.append(f"{event} {full}")


def report(**facts: object) -> None:
    os.write(_OUT, (json.dumps(facts) + "\n").encode())


_OUT = 1


def data_bytes() -> int:
    """What counts against RLIMIT_DATA now."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))


def main(arguments: Sequence[str]) -> None:
    global _OUT
    name, seed, first = arguments[0], int(arguments[1]), int(arguments[2])
    _OUT = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    folder = Path.cwd()
    os.environ.update(HOME=str(folder), XDG_CACHE_HOME=f"{folder}/cache", TMPDIR=f"{folder}/tmp", COLUMNS="120")
    os.environ.pop("EDGERT_CACHE", None)
    (folder / "tmp").mkdir()
    tempfile.tempdir = f"{folder}/tmp"
    _work(name, seed, first, [Path(one) for one in arguments[3:]], folder)


def _work(name: str, seed: int, first: int, files: Sequence[Path], folder: Path) -> None:
    for library in ("av", "onnxruntime"):  # else each run measures in a process of its own what they will take
        importlib.import_module(library)
    from tests.faults.fuzz import seeds
    from tests.faults.fuzz.formats import FORMATS, case

    failed: list[BaseException] = []
    threading.excepthook = lambda found: failed.append(found.exc_value or SystemExit())
    seeds.around()
    data = () if files else FORMATS[name].made()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, _ADDRESSES_BYTES))
    own_bytes = data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (own_bytes + _DATA_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outside = Outside(folder)
    number = first
    gc.freeze()  # what was made so far stays
    report(ready=name)
    while not files or number < len(files):
        content = files[number].read_bytes() if files else case(name, data, seed, number)
        (folder / "case").write_bytes(content)
        report(begun=number, file=str(folder / "case"))
        result = {"ended": number, "file": str(folder / f"failed-{number}"), "taken": False, "where": "", "what": ""}
        try:
            result["taken"] = FORMATS[name].tried(content)
        except BaseException as error:  # noqa: BLE001 - whatever a case raises is what is looked for
            failed.append(error)
        if failed:
            result |= {"where": place(failed[0]), "what": "".join(traceback.format_exception(failed[0]))[-4000:]}
        elif outside.found:
            result |= {"where": "written outside or connected", "what": outside.found[0]}
        if result["where"]:  # the next case takes the place of this one, maybe before anybody has read it
            (folder / f"failed-{number}").write_bytes(content)
        failed.clear()
        outside.found.clear()
        report(**result)
        number += 1
        if not files and data_bytes() > own_bytes + _GROWN_BYTES:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
