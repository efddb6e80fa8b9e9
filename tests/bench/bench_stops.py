"""Two signals at random moments, and a stop while anything hangs: how many runs end in time, whole and with a name.

    python tests/bench/bench_stops.py [--signals 1000] [--hangs 1000] [--runs 200] [--at-once 4] [--json FILE]

Runs are `edgert run` in a process of its own, forked from one that has imported edgert, so that many of them take
minutes; as many hangs more are those of pipelines of one program, some at a time, that are closed. SIGINT and SIGTERM
come 0 to 50 ms apart, at any moment from the first frame on. What hangs, by turns: a stage and a callback of the user's
own, a sink that writes into a pipe that nobody reads, as on a server that is gone, closing a stage, and a model that
loops 2^55 times. Then a SIGTERM. A run is fine when it ends within 5 s, with every line of its files whole, its summary
written, and, where something hung, exit code 1 and its name in the error.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from report import main

from edgert import Pipeline
from edgert.benchmark.measure import Figure
from edgert.errors import StageError
from tests.faults.test_hangs import endless

MOST_S = 5.0
_PATIENCE_S = 120.0
HANGS = ("find", "tell", "pipe", "last", "find", "tell", "pipe", "last", "tell", "model")
"""A model that loops takes a core: others are late where many do."""
FILE = """
schema: 1
name: stops
MODELS
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 60, limit: 100000, realtime: true}
  kept: {sink: jsonl, path: kept.jsonl, from: cam}
"""
CODE = """
import threading
events = {}
def hang(result, folder="."):
    if result.frame.index >= 5:
        event = events.setdefault(folder, threading.Event())
        open(f"{folder}/hangs", "w").close()
        event.wait()
    return result
class Closing:
    def __init__(self, folder="."):
        self.folder = folder
    def __call__(self, result):
        self.event = events.setdefault(self.folder, threading.Event())
        open(f"{self.folder}/hangs", "w").close()
        return result
    def close(self):
        self.event.wait()
"""
STAGES = {
    "": "",
    "find": '  find: {python: "own:hang", from: cam}\n  behind: {sink: jsonl, path: behind.jsonl, from: find}\n',
    "tell": '  tell: {sink: callback, python: "own:hang", from: cam}\n',
    "pipe": "  pipe: {sink: jsonl, path: pipe, from: cam}\n",
    "model": "  model: {infer: long, from: cam}\n  behind: {sink: jsonl, path: behind.jsonl, from: model}\n",
    "last": '  last: {python: "own:Closing", from: cam}\n',
}
MODEL = "models: {long: {onnx: long.onnx, task: {embed: none}, input: {std: 1}}}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--signals", type=int, default=1000, help="runs that get two signals")
    parser.add_argument("--hangs", type=int, default=1000, help="pipelines in which something hangs")
    parser.add_argument("--runs", type=int, default=200, help="runs in which something hangs")
    parser.add_argument("--at-once", type=int, default=4, help="runs at the same time")


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Both."""
    with Forks() as forks:
        one = partial(one_run, forks)
        yield from figures("runs that get two signals", options.signals, ("",), options.at_once, one)
        yield from figures("runs that hang", options.runs, HANGS, options.at_once, one)
    with tempfile.TemporaryDirectory(prefix="stops-") as base:  # they share a module of the user's, which has to stay
        one = partial(one_pipeline, Path(base))
        yield from figures("pipelines that hang", options.hangs, HANGS, 4 * options.at_once, one)


def figures(
    name: str, count: int, hangs: Sequence[str], at_once: int, one: Callable[[str, float, float], tuple[float, str]]
) -> Iterator[Figure]:
    """Runs them, and tells how many were fine, and the slowest."""
    if not count:
        return
    chance = random.Random(7)
    jobs = [partial(one, hangs[n % len(hangs)], chance.uniform(0, 0.3), chance.uniform(0, 0.05)) for n in range(count)]
    with ThreadPoolExecutor(at_once) as pool:
        ends = list[tuple[float, str]]()
        for end in pool.map(lambda job: job(), jobs):
            ends.append(end)
            if end[1]:
                print(f"       wrong, after {end[0]:.2f} s: {end[1]}", flush=True)
            if len(ends) % 100 == 0:
                print(f"       {name}: {len(ends)}, wrong {sum(bool(why) for _, why in ends)}", flush=True)
    fine = sum(not why for _, why in ends)
    took = sorted(took for took, _ in ends)
    detail = {"p50_s": took[len(took) // 2], "p99_s": took[len(took) * 99 // 100]} if took else {}
    yield Figure(f"{name}: ended as they should", fine / len(ends), "of all", 1.0, "higher", len(ends))
    yield Figure(f"{name}: the slowest", took[-1], "s", MOST_S, "lower", len(ends), detail)


def one_run(forks: Forks, hang: str, wait_s: float, gap_s: float) -> tuple[float, str]:
    """How long it took from the first signal to the end, and what was wrong; empty: nothing."""
    folder = Path(tempfile.mkdtemp(prefix="stops-"))
    try:
        written(folder, hang)
        process = forks.start(folder)
        begun = folder / "kept.jsonl"
        if not until(lambda: begun.exists() and begun.stat().st_size > 0 and is_hung(folder, hang)):
            os.kill(process, signal.SIGKILL)
            return 0.0, f"{hang} did not begin: {(folder / 'log').read_text()[-300:]}"
        time.sleep(wait_s)
        began = time.monotonic()
        os.kill(process, signal.SIGTERM if hang else signal.SIGINT)
        if not hang:
            time.sleep(gap_s)
            with suppress(ProcessLookupError):  # the first one was enough
                os.kill(process, signal.SIGTERM)
        if not until(lambda: process in forks.ended, 4 * MOST_S):
            os.kill(process, signal.SIGKILL)
            return time.monotonic() - began, f"{hang or 'two signals'}: killed"
        ended_s, code = forks.ended.pop(process)
        return ended_s - began, wrong_with(folder, hang, code, ended_s - began)
    finally:
        shutil.rmtree(folder)


def one_pipeline(base: Path, hang: str, wait_s: float, _: float) -> tuple[float, str]:
    """How long it took to close a pipeline of this program, and what was wrong."""
    folder = Path(tempfile.mkdtemp(dir=base))
    written(folder, hang)
    files = [name for name in ("kept", "behind") if f" {name}:" in text_of(hang)]
    sets = [f"stages.{name}.path={folder / name}.jsonl" for name in files]
    sets += [f"stages.pipe.path={folder / 'pipe'}"] if hang == "pipe" else []
    sets += [f"stages.{hang}.args={{folder: {folder}}}"] if hang in ("find", "last") else []
    callbacks = {"tell": lambda result: sys.modules["own"].hang(result, str(folder))} if hang == "tell" else {}
    pipeline = Pipeline(folder / "p.yaml", overrides=sets, callbacks=callbacks)
    pipeline.start()
    begun = folder / "kept.jsonl"
    if not until(lambda: begun.exists() and begun.stat().st_size > 0 and is_hung(folder, hang)):
        return 0.0, f"{hang} did not begin"
    time.sleep(wait_s)
    began, why = time.monotonic(), "no error"
    try:
        pipeline.close()
    except StageError as error:
        why = "" if f"stage {hang} does not end" in error.what else f"{hang}: {error}"
    took_s = time.monotonic() - began
    why = why or ("" if took_s <= MOST_S else f"{hang}: late") or torn(folder, hang)
    if hang == "pipe":
        os.close(os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    if event := getattr(sys.modules.get("own"), "events", {}).pop(str(folder), None):
        event.set()
    return took_s, why


def text_of(hang: str) -> str:
    """The pipeline file."""
    return FILE.replace("MODELS", MODEL if hang == "model" else "") + STAGES[hang]


def written(folder: Path, hang: str) -> None:
    """The pipeline and what it needs."""
    (folder / "own.py").write_text(CODE)
    if hang == "model":
        (folder / "long.onnx").write_bytes(endless())
    if hang == "pipe":
        os.mkfifo(folder / "pipe")
    (folder / "p.yaml").write_text(text_of(hang))


def is_hung(folder: Path, hang: str) -> bool:
    """Whether a run has come to what hangs."""
    if hang in ("find", "tell", "last"):
        return (folder / "hangs").exists()
    return not hang or (folder / "kept.jsonl").read_bytes().count(b"\n") > 20


def wrong_with(folder: Path, hang: str, code: int, took_s: float) -> str:
    """What is not as it should be after a run."""
    log, about = (folder / "log").read_text(), hang or "two signals"
    if took_s > MOST_S:
        return f"{about}: late"
    if code != (1 if hang else 0):
        return f"{about}: exit code {code}: {log[-300:]}"
    if hang and f"stage {hang} does not end" not in log:
        return f"{about}: not named: {log[-300:]}"
    summary = json.loads((folder / "summary.json").read_text())
    if hang and hang not in summary["error"]["what"]:
        return f"{about}: not in the summary"
    return torn(folder, about)


def torn(folder: Path, about: str) -> str:
    """Which file has half a line; empty where none has."""
    for file in folder.glob("*.jsonl"):
        text = file.read_bytes()
        if not all(json.loads(line) for line in text.splitlines()) or text[-1:] not in (b"\n", b""):
            return f"{about}: {file.name} is torn"
    return ""


def until(is_so: Callable[[], bool], seconds: float = _PATIENCE_S) -> bool:
    """Whether it came to be."""
    ends_s = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.005)
    return True


class Forks:
    """Processes of `edgert run`, forked by one that has no threads, which also sees them end.

    Attributes:
        ended: of processes that have ended, when, and with which code.
    """

    def __enter__(self) -> Forks:
        orders, self._orders = os.pipe()
        news, told = os.pipe()
        if os.fork() == 0:
            os.close(self._orders)
            fork_all(orders, told)
        os.close(orders)
        os.close(told)
        self.ended = dict[int, tuple[float, int]]()
        self._started, self._turn = dict[str, int](), threading.Lock()
        threading.Thread(target=self._listen, args=(news,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._orders)

    def start(self, folder: Path) -> int:
        """Starts a run there; its process."""
        with self._turn:
            os.write(self._orders, f"{folder}\n".encode())
        until(lambda: str(folder) in self._started)
        return self._started.pop(str(folder))

    def _listen(self, news: int) -> None:
        with open(news) as lines:
            for line in lines:
                kind, *words = line.split()
                if kind == "started":
                    self._started[words[0]] = int(words[1])
                else:
                    self.ended[int(words[0])] = (float(words[1]), os.waitstatus_to_exitcode(int(words[2])))


def fork_all(orders: int, told: int) -> None:
    """The body of the process that forks."""
    import onnxruntime  # noqa: F401 - once for all

    import edgert.assemble
    import edgert.cli.run_view
    import edgert.pipeline  # noqa: F401

    gc.freeze()
    os.set_blocking(orders, False)
    rest, running, is_open = b"", set[int](), True
    while is_open or running:
        try:
            data = os.read(orders, 1 << 16)
            is_open = bool(data)
        except BlockingIOError:
            data = b""
        *folders, rest = (rest + data).split(b"\n")
        for folder in folders:
            if (process := os.fork()) == 0:
                run_there(Path(folder.decode()))
            running.add(process)
            os.write(told, b"started %s %d\n" % (folder, process))
        for process in tuple(running):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                running.remove(process)
                os.write(told, b"ended %d %f %d\n" % (process, time.monotonic(), status))
        time.sleep(0.005)
    os._exit(0)


def run_there(folder: Path) -> None:
    """`edgert run`, as its own process; does not return."""
    from edgert.cli import main as edgert

    code = 70
    try:
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["edgert", "run", "p.yaml", "--plain", "--json", "summary.json"]
        edgert()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure, arguments)
