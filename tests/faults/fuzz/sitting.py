"""Cases of one format in processes with limits, one after another, and what became of them.

A failure is a traceback, the end of the process, more than ten seconds of processor time, more than 1 GiB of memory,
a file outside of the case's folder, or an escape sequence that is printed. The
smallest input of each place that fails is kept, named by its format and place.
"""

import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.fuzz.worker import MEMORY_BYTES

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "tests" / "data" / "fuzz"
CASE_S = 10.0
"""Of processor time. Other programs on the machine do not count."""
_WALL_S = 60.0
_START_S = 300.0
_CASES_PER_PROCESS = 2000  # then a fresh one: what it remembers is no case's
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Result:
    """What became of a format's cases. ``failed``: place → numbers of its cases; ``details``: what was said of one."""

    cases: int = 0
    taken: int = 0
    cpu_s: float = 0.0
    most_bytes: int = 0
    slowest_s: float = 0.0
    failed: dict[str, list[int]] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, bytes] = field(default_factory=dict)


class Worker:
    def __init__(self, arguments: Sequence[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "tests.faults.fuzz.worker", *arguments]
        self._folder = tempfile.TemporaryDirectory(prefix="edgert-fuzz-", ignore_cleanup_errors=True)
        self._errors = Path(self._folder.name) / "errors"
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors.open("wb"), env=environment, cwd=self._folder.name
        )
        assert self.process.stdout is not None
        self._out, self._rest = os.dup(self.process.stdout.fileno()), b""
        self.process.stdout.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)

    def lines(self) -> Iterator[dict[str, object] | None]:
        """What it reports; None five times a second while it reports nothing."""
        while True:
            if not self._selector.select(0.2):
                yield None
                continue
            read = os.read(self._out, 1 << 16)
            if not read:
                return
            *whole, self._rest = (self._rest + read).split(b"\n")
            yield from map(json.loads, whole)

    def cpu_s(self) -> float:
        try:
            parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(parts[11]) + int(parts[12])) / _TICKS

    def rss_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def kill(self) -> str:
        self.process.kill()
        self.process.wait()
        self._selector.close()
        os.close(self._out)
        words = self._errors.read_bytes()[-2000:].decode(errors="replace")
        self._folder.cleanup()
        return words


def fuzz(name: str, seed: int, seconds: float, last: int | None = None, files: Sequence[Path] = ()) -> Result:
    """Runs cases of a format for a time, or those before number ``last``; or a corpus."""
    result, until, first = Result(), time.monotonic() + seconds, 0
    count = len(files) if files else last
    while time.monotonic() < until and (count is None or first < count):
        end = min(first + _CASES_PER_PROCESS, count) if count is not None else first + _CASES_PER_PROCESS
        first = _one_process(name, seed, first, end, until, files, result)
    return result


def _one_process(
    name: str, seed: int, first: int, last: int, until: float, files: Sequence[Path], result: Result
) -> int:
    worker = Worker([name, str(seed), str(first), *map(str, files)])
    number, file, began, cpu_s, at = first, Path(), time.monotonic(), 0.0, None
    trouble, limit_s = "", _START_S
    for line in worker.lines():
        result.most_bytes = max(result.most_bytes, worker.rss_bytes())
        now = time.monotonic()
        if line is None or "ready" in line:
            if at is not None and worker.cpu_s() - cpu_s > CASE_S:
                trouble = f"more than {CASE_S:g} s"
            elif now - began > limit_s:
                trouble = f"waits for more than {limit_s:g} s"
            elif at is not None and worker.rss_bytes() > MEMORY_BYTES:
                trouble = "more than 1 GiB"
            if trouble:
                break
            continue
        if "begun" in line:
            number, file, limit_s = int(str(line["begun"])), Path(str(line["file"])), _WALL_S
            at, began, cpu_s = number, now, worker.cpu_s()
            continue
        used_s = worker.cpu_s() - cpu_s
        result.cases, result.taken = result.cases + 1, result.taken + bool(line["taken"])
        result.slowest_s, result.cpu_s = max(result.slowest_s, used_s), result.cpu_s + used_s
        at, where = None, str(line["where"])
        if where:
            _fail(result, number, where, str(line["what"]), _content(Path(str(line["file"]))))
        elif used_s > CASE_S:
            _fail(result, number, f"more than {CASE_S:g} s", "", _content(file))
        number += 1
        if number >= last or now > until:
            break
    content = _content(file)
    words = worker.kill()
    if at is not None or trouble:
        code = worker.process.returncode
        sign = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        result.cases += 1
        _fail(result, number, trouble or f"the process ended: {sign}", words, content)
        return number + 1
    if number == first:
        raise RuntimeError(f"no case of {name} was run: {words}")
    return number


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the folder went with its process
        return b""


def _fail(result: Result, number: int, where: str, what: str, content: bytes) -> None:
    result.failed.setdefault(where, []).append(number)
    if where not in result.inputs or 0 < len(content) < len(result.inputs[where]):
        result.inputs[where], result.details[where] = content, what


def keep(name: str, result: Result, folder: Path) -> None:
    for where, content in result.inputs.items():
        digest = hashlib.sha256(content).hexdigest()[:8]
        slug = "".join(one if one.isalnum() else "-" for one in where.replace(".py", ""))
        target = folder / name / f"{slug}-{digest}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        with (target.parent / "log").open("a") as log:
            log.write(f"== {target.name}: {where}\n{result.details[where]}\n")
