"""A build as it goes on: a line for every step that ended and a bar for the one that counts, or events as JSON."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.cli import option
from edgert.cli.output import JsonLines, is_stdout

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from edgert.compiler.finish import Finished, Waiting
    from edgert.config import PipelineFile
    from edgert.remote.remote_build import RemoteBuilt
    from edgert.steps import Event, OnEvent


_MARKS = {
    "done": "[green]✓[/]",
    "cached": "[dim]=[/]",
    "damaged": "[yellow]![/]",
    "skipped": "[yellow]–[/]",
    "failed": "[red]✗[/]",
}


@contextmanager
def listener(json: Path | None) -> Iterator[tuple[OnEvent, JsonLines]]:
    """Gives what takes events, and what takes the last line of JSON.

    Events are shown, unless JSON goes to standard output; and are lines of the JSON.
    """
    with JsonLines(json) as write, nullcontext() if is_stdout(json) else BuildProgress() as show:

        def on_event(event: Event) -> None:
            write(event.to_json())
            if show is not None:
                show(event)

        yield on_event, write


class FirstTimeProgress:
    """A :class:`BuildProgress` that costs nothing, imports included, until the first event; a context.

    Args:
        quiet: shows nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._shown: BuildProgress | None = None
        self._show: OnEvent | None = None

    def __enter__(self) -> OnEvent:
        return self._on_event

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.__exit__()

    def _on_event(self, event: Event) -> None:
        if self._quiet:
            return
        if self._show is None:
            self._shown = BuildProgress()
            self._show = self._shown.__enter__()
        self._show(event)


class BuildProgress(AbstractContextManager["OnEvent"]):
    """A context that gives the function to call with events, from any thread."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._console = Console(stderr=True, highlight=False)
        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), text, BarColumn(bar_width=20), MofNCompleteColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> OnEvent:
        self._bar.start()
        return self._on_event

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _on_event(self, event: Event) -> None:
        with self._lock:
            if event.state == "started":
                self._start(event)
            elif event.state == "progress":
                self._bar.update(self._tasks[event.step, event.model], completed=event.done, total=event.total)
            elif event.state == "note":
                self._print(event, "[dim]·[/]")
            else:
                self._end(event)

    def _start(self, event: Event) -> None:
        name = f"{event.model} {event.step}".strip()
        self._tasks[event.step, event.model] = self._bar.add_task(name, total=None)

    def _end(self, event: Event) -> None:
        if event.state != "damaged":
            task = self._tasks.pop((event.step, event.model), None)
            if task is not None:
                self._bar.remove_task(task)
        self._print(event, _MARKS[event.state])

    def _print(self, event: Event, mark: str) -> None:
        from rich.markup import escape

        took = f"{event.seconds:6.2f} s" if event.state in ("done", "cached", "failed") else " " * 8
        detail = escape(event.detail)
        self._console.print(f"{mark} {took}  {event.step:<9} {escape(event.model)}  [dim]{detail}[/]", soft_wrap=True)


# ``edgert build dock.edgert``: the last step of a build, on the machine that runs it.


def finish_here(
    bundle: Path, output: Path | None, folder: bool, json: Path | None, strict: bool, foreign: Mapping[str, object]
) -> None:
    """Compiles what a bundle misses, and shows how it goes: in lines, or as events in JSON.

    Args:
        foreign: option → value, of those that set what a bundle is built for, which is settled for this one.
    """
    from edgert.cli.progress import stop_on_signal
    from edgert.compiler.finish import finish

    option.refuse(foreign, f"{bundle} is a bundle, for which that is settled")
    stop = threading.Event()
    with listener(json) as (on_event, write), stop_on_signal(stop.set):
        done = finish(bundle, output, strict=strict, folder=folder, on_event=on_event, stop=stop)
        write(finished_as_json(done))
    if not is_stdout(json):
        _show(done)


def finished_as_json(done: Finished) -> dict[str, object]:
    """The last line of ``--json``."""
    return {
        "bundle": str(done.path) if done.path is not None else None,
        "written": done.written,
        "size_bytes": done.size_bytes,
        "seconds": round(done.seconds, 3),
        "board": done.manifest.board,
        "target": done.target,
        "engines": dict(done.engines),
        "waiting": waiting_as_json(done.waiting),
        "skipped": [{"engine": one.engine, "model": one.model, "why": one.why} for one in done.skipped],
    }


def waiting_as_json(waiting: Mapping[str, Waiting]) -> dict[str, dict[str, str]]:
    """Model → the engine that waits for what it needs, and why."""
    return {model: asdict(one) for model, one in waiting.items()}


def show_engines(console: Console, engines: Mapping[str, str], waiting: Mapping[str, Waiting], place: str) -> None:
    """Who runs each model at a place, and what was compiled for it that cannot run there yet."""
    for model, engine in engines.items():
        console.print(f"{model} runs with {engine} {place}", markup=False)
    for model, one in waiting.items():
        so_far = "" if model in engines else "; nothing else of engines: runs it"
        console.print(
            f"{model} is compiled for {one.engine}, which cannot run {place} yet{so_far}: {one.why}", markup=False
        )


def _show(done: Finished) -> None:
    from rich.console import Console

    from edgert.units import format_bytes

    console = Console(highlight=False)
    show_engines(console, done.engines, done.waiting, "here")
    if done.path is None:
        console.print(f"cached on this machine: edgert run finds it ({done.seconds:.1f} s)")
        return
    word = "written" if done.written else "nothing has changed; left as it is"
    console.print(f"[green]→[/] {done.path}: {format_bytes(done.size_bytes)}; {word} ({done.seconds:.1f} s)")


# ``edgert build PIPELINE --remote user@jetson``: engines compiled on their board, from here.


def build_remotely(
    source: Path,
    output: Path | None,
    address: str,
    program: str | None,
    *,
    target: Mapping[str, str | None],
    overrides: Sequence[str],
    json: Path | None,
    strict: bool,
    foreign: Mapping[str, object],
) -> None:
    """Builds a pipeline or bundle, and shows how it goes here and there: in lines, or as events in JSON.

    Args:
        target: board, mode and TensorRT as they were asked for.
        strict: an engine that the board would skip is an error.
        foreign: option → value, of those that a remote build has no use for.
    """
    from edgert.bundle.bundle import is_bundle
    from edgert.cli.progress import stop_on_signal
    from edgert.config import load_pipeline
    from edgert.remote.remote_build import build_remote

    option.refuse(foreign, "it is for builds on this machine")
    made: PipelineFile | Path = source
    if is_bundle(source):
        given = {"--board": target["board"], "--mode": target["mode"], "--trt": target["tensorrt"], "--set": overrides}
        option.refuse(given, f"{source} is a bundle, for which that is settled")
        output = output or source
    else:
        made = load_pipeline(source, overrides)
        output = output or option.bundle_of(made)
    stop = threading.Event()
    with listener(json) as (on_event, write), stop_on_signal(stop.set):
        built = build_remote(
            made, output, address, program=program, **target, strict=strict, on_event=on_event, stop=stop
        )
        write(_as_json(built))
    if not is_stdout(json):
        _build_remote_show(built, address)


def _as_json(built: RemoteBuilt) -> dict[str, object]:
    return {
        "bundle": str(built.path),
        "written": built.written,
        "size_bytes": built.size_bytes,
        "seconds": round(built.seconds, 3),
        "board": built.remote_board.name,
        "engines": dict(built.engines),
        "waiting": waiting_as_json(built.waiting),
    }


def _build_remote_show(built: RemoteBuilt, address: str) -> None:
    from rich.console import Console

    from edgert.units import format_bytes

    console = Console(highlight=False)
    show_engines(console, built.engines, built.waiting, f"on {address}")
    word = "written" if built.written else "nothing has changed; left as it is"
    console.print(f"[green]→[/] {built.path}: {format_bytes(built.size_bytes)}; {word} ({built.seconds:.1f} s)")
