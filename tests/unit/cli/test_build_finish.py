"""What ``edgert build dock.edgert`` says at its end."""

from __future__ import annotations

from rich.console import Console

from edgert.cli.build_command import show_engines
from edgert.compiler.finish import Waiting

WAITING = {"parts": Waiting("tensorrt", "there is no NVIDIA GPU here: no driver")}


def shown(engines: dict[str, str], place: str = "here") -> list[str]:
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        show_engines(console, engines, WAITING, place)
    return captured.get().splitlines()


def test_what_runs_is_told_beside_what_waits() -> None:
    assert shown({"parts": "onnxruntime", "plates": "onnxruntime"}) == [
        "parts runs with onnxruntime here",
        "plates runs with onnxruntime here",
        "parts is compiled for tensorrt, which cannot run here yet: there is no NVIDIA GPU here: no driver",
    ]


def test_where_nothing_runs_it() -> None:
    (told,) = shown({}, "on jetson")
    assert "which cannot run on jetson yet; nothing else of engines: runs it: there is no NVIDIA GPU" in told
