"""The way through a box: what is typed on a board, what must come of it, and the log of both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from scripts.box import remote
from scripts.box.box import Box, Done, Step
from scripts.box.identity import HIDDEN, Identity
from tests.helpers.sysfs import TREES

_MODEL = "--set models.parts.tuning.spinning=false --set models.parts.calibrate.limit=8"  # or a frame takes a minute
_DEMO = f"edgert run pipelines/hello.yaml --set stages.belt.limit=6 {_MODEL}"
_BUILD = (
    "edgert build pipelines/hello.yaml --remote board -o $BOX/hello.edgert --set models.parts.calibrate.limit=8 "
    "--set 'engines=[tensorrt, onnxruntime]' && ssh board 'cat >/root/hello.edgert' <$BOX/hello.edgert"
)
_BUNDLE = (
    "edgert run /root/hello.edgert --set stages.belt.limit=6 --set models.parts.tuning.spinning=false --plain "
    "&& wc -l out/hello.jsonl"
)
_LAST_LINES = 40


def steps(one: Identity) -> tuple[Step, ...]:
    """The way, in order."""
    modes = [mode.name for mode in one.record.modes]
    known = (re.escape(one.record.title), rf"JetPack {re.escape(one.jetpack)}")
    pip = "python3 -m venv --system-site-packages /root/wheel && /root/wheel/bin/pip install --quiet 'edgert[plan]'"
    set_mode = "printf 'pmode:%04d fmode:quiet\\n' {} >/var/lib/nvpmodel/status"
    shown = "edgert doctor | grep -A2 'power mode'"
    doctor = "edgert doctor"
    flashed = f"dpkg --install /root/flashed/*.deb && ln -sf python3 /usr/bin/python{one.python}"
    return (
        Step("what NVIDIA flashes: doubles of TensorRT and CUDA, and Python's name", flashed, ("Setting up",)),
        Step("edgert by its wheel", f"{pip} && /root/wheel/bin/edgert --version", (r"\d+\.\d+",)),
        Step("the script for boards, from the clone", "scripts/setup-jetson --no-pycuda", ("ready: ", "TensorRT")),
        Step("what is here", doctor, (*known, re.escape(one.mode))),
        Step("the same where Docker hides the device tree", doctor, known, proc=HIDDEN),
        Step("the same where the board is named", doctor, known, proc=HIDDEN, variables=(("EDGERT_BOARD", one.board),)),
        Step(
            "a board that there is not", doctor, ("there is no board 'orin'",), 1, variables=(("EDGERT_BOARD", "orin"),)
        ),
        Step("another power mode", f"{set_mode.format(len(modes) - 1)}; {shown}", (re.escape(modes[-1]),)),
        Step(
            "a power mode that the board has not, and back to the first",
            f"{set_mode.format(99)}; {shown}; {set_mode.format(0)}",
            ("no power mode 99",),
        ),
        Step(
            "how fast it would be",
            f"edgert plan pipelines/hello.yaml --board {one.board}",
            (re.escape(one.record.title),),
        ),
        Step("the demo", f"{_DEMO} --quiet && wc -l out/hello.jsonl", (r"\b6 out/hello\.jsonl",)),
        Step("compiled from a workstation", _BUILD, ("TensorRT",), remote=True),
        Step("its bundle on the board", _BUNDLE, (r"\b6 out/hello\.jsonl", "tensorrt")),
        Step(
            "meters",
            "edgert top --once --json - | tr '}' '\\n' | grep -E 'power|mode'",
            (f'"mode": "{one.mode}"', rf'"power": {{"value": {int(TREES[one.tree].watts)}\.'),
        ),
    )


def walk(one: Identity, box: Box) -> list[Done]:
    """Goes it. Steps that went well before in this box are not gone again; the first that goes wrong ends it."""
    kept = box.folder / "steps.json"
    before = [Done(**each) for each in json.loads(kept.read_text())] if kept.exists() else []
    gone: list[Done] = []
    for step in steps(one):
        print(f"[{one.board}] {step.title}: {step.typed}", flush=True)
        if before and before[0].command == step.typed and not before[0].wrong:
            gone.append(before.pop(0))
            print(f"  went well before, {gone[-1].seconds:.1f} s", flush=True)
            continue
        before = []  # what follows may depend on it
        gone.append(remote.do(box, step) if step.remote else box.do(step))
        kept.write_text(json.dumps([asdict(each) for each in gone], indent=1))
        print(f"  {gone[-1].wrong or 'as it must be'}, {gone[-1].seconds:.1f} s", flush=True)
        if gone[-1].wrong:
            print(gone[-1].printed, flush=True)
            break
    return gone


def log(gone: Mapping[str, Sequence[Done]]) -> str:
    """Every step of every box: what was typed, how it ended, and the last of what was printed."""
    lines = ["Written by scripts/board-in-a-box --log. An emulator's times; TensorRT and the GPU are doubles."]
    for board, steps_gone in gone.items():
        for number, done in enumerate(steps_gone, 1):
            shown = done.printed.rstrip().splitlines()[-_LAST_LINES:]
            how = f"(exit code {done.code}, {done.seconds:.1f} s)" + (f" {done.wrong}" if done.wrong else "")
            lines += ["", f"[{board}] {number}. {done.title}", f"$ {done.command}", *map(str.rstrip, shown), how]
    return "\n".join(lines) + "\n"
