"""Commands on a board with their expected results, and the log of both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from edgert.board.devices import ARGUS_SOCKET
from tests.helpers.sysfs import TREES
from tools.box import remote, ubuntu
from tools.box.box import Box, Done, Step
from tools.box.identity import HIDDEN, SENSOR, Identity

_QUICK = "--set models.parts.tuning.spinning=false"  # or a frame takes a minute
_MODEL = f"{_QUICK} --set models.parts.calibrate.limit=8"
_DEMO = f"edgert run pipelines/hello.yaml --set stages.belt.limit=6 {_MODEL}"
_README = "sed -n '/^```yaml/,/^```/p' README.md | sed '1d;$d' >belt.yaml"
_BELT = (
    f"{_README} && edgert check belt.yaml --images docs/hello.jpg {_QUICK} "
    f"&& edgert run belt.yaml --quiet --set stages.camera.limit=6 {_QUICK} && wc -l out/belt.jsonl"
)
_PATIENT = "--set stages.camera.realtime=false --set stages.camera.limit=4"  # or nearly all are dropped: too slow
_CAMERA = f"edgert run csi --plain --set stages.camera.size=640x480 {_PATIENT} {_QUICK}"
_ONCE = "--set stages.camera.reconnect=false"  # or a run waits for the camera to come back
_ERROR = f"{_CAMERA} {_ONCE} --set 'engines=[onnxruntime]'"  # which starts faster
_AWAY = "mv /tmp/argus_socket /tmp/away; {}; code=$?; mv /tmp/away /tmp/argus_socket; exit $code"
_SENT = "&& ssh board 'cat >/root/{0}.edgert' <$BOX/{0}.edgert"
_BUILD = "edgert build pipelines/hello.yaml {} -o $BOX/{}.edgert --set models.parts.calibrate.limit=8"
_ELSEWHERE = f"{_BUILD.format('--board {board}', 'plain')} {_SENT.format('plain')}"
_REMOTE = f"{_BUILD.format('--remote board', 'hello')} --set 'engines=[tensorrt, onnxruntime]' {_SENT.format('hello')}"
_BUNDLE = f"edgert run /root/hello.edgert --set stages.belt.limit=6 {_QUICK} --plain && wc -l out/hello.jsonl"
_BUDGET = "--set 'budgets={{power: {:g}W, when_exceeded: degrade}}' --allow-power-control"
_LOWER_W = {"orin-nx-16gb": 3.1, "agx-orin-64gb": 6.1}
"""Predicted of a lower power mode and not of the first; of Thor's lower modes no clocks are known to plan with."""
_LAST_LINES = 40


def steps(one: Identity) -> tuple[Step, ...]:
    """Return the steps in order."""
    return (*_installed(one), *_detected(one), *_filmed(one), *_powered(one), *_run(one))


def _installed(one: Identity) -> tuple[Step, ...]:
    pip = "python3 -m venv --system-site-packages /root/wheel && /root/wheel/bin/pip install --quiet 'edgert[plan]'"
    flashed = f"dpkg --install /root/flashed/*.deb && ln -sf python3 /usr/bin/python{one.python}"
    demo = f"scripts/demo --quiet --set stages.belt.limit=6 {_MODEL}"  # what `make demo` runs, in few frames
    return (
        Step("what NVIDIA flashes: doubles of TensorRT and CUDA, and Python's name", flashed, ("Setting up",)),
        Step("edgert by its wheel", f"{pip} && /root/wheel/bin/edgert --version", (r"\d+\.\d+",)),
        Step("README's first command, in the clone", demo, (r"edgert run usb-camera",)),
        Step("the script for boards, after it", "scripts/setup-jetson", ("ready: ", "TensorRT")),
    )


def _detected(one: Identity) -> tuple[Step, ...]:
    known, sensor = (re.escape(one.record.title), rf"JetPack {re.escape(one.jetpack)}"), re.escape(SENSOR)
    named, unknown = (("EDGERT_BOARD", one.board),), (("EDGERT_BOARD", "orin"),)
    doctor, hidden = "edgert doctor", "the same where Docker hides the device tree"
    here = (*known, re.escape(one.mode), f"csi://0 at /dev/video0 {sensor}", "nvarguscamerasrc")
    return (
        Step("what is here", doctor, here),
        Step(
            f"{hidden}, and the camera daemon's socket is left out",
            _AWAY.format(doctor),
            (*known, ARGUS_SOCKET),
            proc=HIDDEN,
        ),
        Step("the same where the board is named", doctor, known, proc=HIDDEN, variables=named),
        Step("a board that there is not", doctor, ("there is no board 'orin'",), 1, variables=unknown),
    )


def _filmed(one: Identity) -> tuple[Step, ...]:
    by_address = "-DMEMORY=CUDA_DEVICE" in one.surface
    pair = r"(?s)UnregisterResource: ([1-9]\d*)\n.*EGLRegisterImage: \1\n"
    way = ("by\\s+device\\s+address", "EGLRegisterImage: 0\n") if by_address else (r"by\s+EGL\s+image", pair)
    gone = "error: CSI camera {} gives no images"
    read = ("4 of 4 frames", r"0\.00 host copies \(0 B\) per frame", *way, r"\b4 out/csi\.jsonl", '"label":')
    shown = "&& wc -l out/csi.jsonl && head -c 300 out/csi.jsonl"
    fails = Step(
        "EGL that refuses the images, as under ssh -X",
        f"{_CAMERA} {_ONCE}",
        ("an image in NVMM memory cannot be used by CUDA", "unset DISPLAY"),
        1,
        variables=(("DISPLAY", "localhost:10.0"), ("NVMM_FAILS", "NvBufSurfaceMapEglImage:0")),
    )
    return (
        Step("the CSI camera", f"{_CAMERA} {shown}", read, variables=(("NVMM_COUNTS", "1"),)),
        Step("a camera that there is not", f"{_ERROR} --set stages.camera.source=csi://1", (gone.format(1),), 1),
        Step(
            "a container without the camera daemon's socket",
            _AWAY.format(_ERROR),
            (gone.format(0), f"there is no /{ARGUS_SOCKET}"),
            1,
            proc=HIDDEN,
        ),
        *(() if by_address else (fails,)),
    )


def _powered(one: Identity) -> tuple[Step, ...]:
    modes = [mode.name for mode in one.record.modes]
    shown = "edgert doctor | grep -A2 'power mode'"
    unknown = "printf 'pmode:0099 fmode:quiet\\n' >/var/lib/nvpmodel/status"
    budget = _BUDGET.format(_LOWER_W.get(one.board, 1))
    lower = f"{_DEMO} --quiet {budget} && cat /var/log/nvpmodel"
    title = "a power mode that a budget asks for, and the first again"
    kept = Step(title, lower, (r"(?m)^[1-9] \S+\n0 " + re.escape(one.mode),))
    if one.board not in _LOWER_W:
        kept = Step("a power budget that no setting keeps", lower, ("error: no setting keeps the budgets",), 1)
    return (
        Step("another power mode", f"nvpmodel -m {len(modes) - 1} && {shown}; nvpmodel -q", (re.escape(modes[-1]),)),
        Step(
            "a power mode that the board has not, and back to the first",
            f"{unknown}; {shown}; nvpmodel -m 0 && rm /var/log/nvpmodel",
            ("no power mode 99",),
        ),
        Step("clocks that a power budget may change", f"{_DEMO} {budget} --dry-run", ("power: ",)),
        kept,
    )


def _run(one: Identity) -> tuple[Step, ...]:
    plan = f"edgert plan pipelines/hello.yaml --board {one.board}"
    watts = rf'"power": {{"value": {int(TREES[one.tree].watts)}\.'
    top = "edgert top --once --json - | tr '}' '\\n' | grep -E 'power|mode'"
    return (
        Step("how fast it would be", plan, (re.escape(one.record.title),)),
        Step("README's own pipeline", _BELT, (r"\b6 out/belt\.jsonl",)),
        Step("the demo", f"{_DEMO} --quiet && wc -l out/hello.jsonl", (r"\b6 out/hello\.jsonl",)),
        Step("a bundle made elsewhere", _ELSEWHERE.format(board=one.board), ("the board compiles",), at="here"),
        Step("which the board finishes", "edgert build /root/plain.edgert", ("compile", "check")),
        Step("compiled from a workstation", _REMOTE, ("TensorRT",), at="here"),
        Step("its bundle on the board", _BUNDLE, (r"\b6 out/hello\.jsonl", "tensorrt")),
        Step("meters", top, (f'"mode": "{one.mode}"', watts)),
    )


_DO: Mapping[str, Callable[[Box, Step], Done]] = {"box": Box.do, "here": remote.do, "booted": ubuntu.do}


def walk(way: Sequence[Step], box: Box) -> list[Done]:
    """Goes the way through a box. Steps that went well before in it are not gone again; the first that goes wrong ends
    it."""
    kept = box.folder / "steps.json"
    before = [Done(**each) for each in json.loads(kept.read_text())] if kept.exists() else []
    gone: list[Done] = []
    for step in way:
        print(f"[{box.folder.name}] {step.title}: {step.typed}", flush=True)
        if before and before[0].command == step.typed and not before[0].wrong:
            gone.append(before.pop(0))
            print(f"  went well before, {gone[-1].seconds:.1f} s", flush=True)
            continue
        before = []  # what follows may depend on it
        gone.append(_DO[step.at](box, step))
        kept.write_text(json.dumps([asdict(each) for each in gone], indent=1))
        print(f"  {gone[-1].wrong or 'as it must be'}, {gone[-1].seconds:.1f} s", flush=True)
        if gone[-1].wrong:
            print(gone[-1].printed, flush=True)
            break
    return gone


def log(gone: Mapping[str, Sequence[Done]]) -> str:
    """Return the log of all steps of all boxes: command, result, and end of the output."""
    lines = ["Written by tools/board-in-a-box --log. An emulator's times; TensorRT and the GPU are doubles."]
    for board, steps_gone in gone.items():
        for number, done in enumerate(steps_gone, 1):
            shown = done.printed.rstrip().splitlines()[-_LAST_LINES:]
            how = f"(exit code {done.code}, {done.seconds:.1f} s)" + (f" {done.wrong}" if done.wrong else "")
            lines += ["", f"[{board}] {number}. {done.title}", f"$ {done.command}", *map(str.rstrip, shown), how]
    return "\n".join(lines) + "\n"
