"""A box with systemd as process 1: an Ubuntu as a JetPack has it, which installs edgert's unit as docs/service.md says
and starts it with a device open. It is of this machine's processor, as an emulator shows no control groups.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import DeviceError
from tests.unit.board import tree
from tools.box import jetpack
from tools.box.box import Box, Done, Step, outcome
from tools.box.system import ROOT, Distribution

BOOT = Path(__file__).with_name("boot.sh")
_DENIED_BEFORE = 253  # from here on a device that is allowed does not close the others
_PACKAGES = ("systemd", "systemd-sysv", "dbus", "udev", "python3", "python3-venv", "ca-certificates", "make")
_WAIT_S = 60.0
_MOUNTS = Path("/proc/self/mounts")
_CAMERA = '''\
"""A source that holds a device open, as cameras and GPUs are held."""


class Camera:
    def __init__(self, width, height, fps, seed):
        self.device = open("/dev/nvmap", "rb", buffering=0)

    def render(self, index, out):
        out[...] = index % 256
'''
_PIPELINE = """\
models:
  parts:
    onnx: parts.onnx
    task: {detect: yolox, labels: parts.txt, score: 0.4}
    input: {resize: letterbox, color: rgb, std: 255}
stages:
  camera: {source: "python:camera:Camera", size: 640x480, fps: 10, realtime: true}
  away:   {source: "v4l2:///dev/video9", required: false}
  drawn:  {source: "gst:videotestsrc is-live=true", size: 640x480, fps: 10}
  find:   {infer: parts, from: [camera, away, drawn]}
  events: {sink: jsonl, from: find, path: events.jsonl}
"""


@dataclass(frozen=True, slots=True)
class Ubuntu:
    """Release of Ubuntu of a JetPack; ``release`` is that of Jetson Linux."""

    name: str
    distribution: Distribution
    systemd: int
    release: str
    tensorrt: str


def _distribution(suite: str, python: str) -> Distribution:
    return Distribution(
        suite,
        python,
        machine="x86_64",
        architecture="amd64",
        packages=_PACKAGES,
        components="main,universe",
        archive=os.environ.get("UBUNTU_MIRROR", "http://archive.ubuntu.com/ubuntu"),
    )


UBUNTUS = {
    one.name: one
    for one in (
        Ubuntu("ubuntu-22.04", _distribution("jammy", "3.10"), 249, "R36 (release), REVISION: 4.3", "10.3"),
        Ubuntu("ubuntu-24.04", _distribution("noble", "3.12"), 255, "R38 (release), REVISION: 4.0", "10.13"),
    )
}


def fill(one: Ubuntu, box: Box) -> None:
    """Write the files that make it a Jetson for ``scripts/setup-jetson``, and its pipeline."""
    upper, flashed = box.upper, box.upper / "root/flashed"
    tree.write(upper, "etc/nv_tegra_release", f"# {one.release}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: 1\n")
    uname = '#!/bin/sh\nif [ "$*" = -m ]; then echo aarch64; else exec /usr/bin/uname "$@"; fi\n'
    tree.write(upper, "usr/local/bin/uname", uname)
    (upper / "usr/local/bin/uname").chmod(0o755)
    shutil.rmtree(flashed, ignore_errors=True)
    jetpack.pack(jetpack.tensorrt(flashed, one.tensorrt, 0), f"{one.tensorrt}.0", one.distribution.architecture)
    tree.write(upper, "root/own/camera.py", _CAMERA)
    tree.write(upper, "root/own/dock.yaml", _PIPELINE)


def steps(one: Ubuntu) -> tuple[Step, ...]:
    """Return the steps of README, then those of docs/service.md with its placeholders filled in."""
    page = (ROOT / "docs/service.md").read_text()
    block = page.partition("```sh\n")[2].partition("```")[0]
    *typed, start = (line.replace("sudo ", "") for line in re.findall(r"^(\S.*?)(?:  +#.*)?$", block, re.M))
    typed[0] += " --no-pycuda"  # there is no CUDA compiler here
    beside = "install -m 644 /root/own/camera.py pipelines/assets/parts.onnx pipelines/assets/parts.txt /etc/edgert/"
    service = " && ".join(["cp /root/own/dock.yaml .", *typed, beside])
    denied = one.systemd < _DENIED_BEFORE
    clock = (
        "mkdir /etc/systemd/system/edgert@.service.d && cd /etc/systemd/system/edgert@.service.d "
        "&& printf '[Service]\\nProtectClock=yes\\n' >clock.conf && systemctl daemon-reload "
        f"&& systemctl start --no-block edgert@dock && sleep {8 if denied else 15}; systemctl is-active edgert@dock; "
        "journalctl --sync; journalctl -u edgert@dock --since -30s -o cat | grep 'Error:.*/dev/nvmap'; "
        "systemctl stop edgert@dock; cd /; rm -r /etc/systemd/system/edgert@.service.d"
    )
    return (
        Step("what NVIDIA flashes: a double of TensorRT", "dpkg --install /root/flashed/*.deb", ("Setting up",)),
        Step("README's first command, in the clone", "make demo", ("edgert run usb-camera",)),
        Step("the script for boards, after it", "scripts/setup-jetson --no-pycuda", ("ready: ", "TensorRT")),
        Step("the lines of docs/service.md", service, ("ready: /opt/edgert/bin/edgert; as a service",)),
        Step(
            "the unit starts, with a device open",
            f"systemctl --version | head -n 1; {start} && {_LOOK} && systemctl stop edgert@dock && {_LEFT}",
            (
                rf"systemd {one.systemd}\b",
                r"(?m)^active$",
                r"(?m)/dev/nvmap$",
                r"HOME=/var/cache/edgert",
                r"Groups: .*\bvideo\b.*\brender\b",
                r"EDGERT_STREAM=away",
                r"Result=success",
                r"events\.jsonl",
                r"summary\.json",
                r"registry\.x86_64\.bin",
            ),
            at="booted",
        ),
        Step(
            "killed, and then held up in the middle of its work: it comes back",
            f"{_IMPATIENT} && systemctl start edgert@dock && {_KILL} && {_WEDGE}",
            ("after SIGKILL: active", "after SIGSTOP: active", "NRestarts=2"),
            at="booted",
        ),
        Step(
            f"ProtectClock=, which {'takes' if denied else 'no longer takes'} devices away",
            clock,
            ("(?m)^activating$", r"Operation not permitted: '/dev/nvmap'") if denied else ("(?m)^active$",),
            at="booted",
        ),
    )


_PID = "pid=$(systemctl show --property MainPID --value edgert@dock)"
_LOOK = (
    f"systemctl is-active edgert@dock && {_PID} && readlink /proc/$pid/fd/* | grep -m 1 /dev/nvmap "
    "&& tr '\\0' '\\n' </proc/$pid/environ | grep ^HOME= && echo Groups: $(id -Gn edgert) "
    "&& sleep 6 && systemctl show --property StatusText edgert@dock && journalctl --sync "
    "&& journalctl -u edgert@dock -o export | grep -a -m 1 EDGERT_STREAM="
)
_LEFT = "systemctl show --property Result edgert@dock && find /var/lib/edgert /var/cache/edgert -type f -ls"
_SOON = "/run/systemd/system/edgert@.service.d"
_IMPATIENT = f"mkdir -p {_SOON} && printf '[Service]\\nWatchdogSec=4\\n' >{_SOON}/soon.conf && systemctl daemon-reload"
_AGAIN = (
    f"i=0; while {_PID}; [ $pid = 0 ] || [ $pid = $old ] || ! systemctl --quiet is-active edgert@dock; "
    "do i=$((i + 1)); [ $i -lt 300 ] || break; sleep 0.2; done; echo after {0}: $(systemctl is-active edgert@dock)"
)
_KILL = f"{_PID}; old=$pid; kill -KILL $pid; {_AGAIN.format('SIGKILL')}"
_WEDGE = (
    f"{_PID}; old=$pid; kill -STOP $pid; {_AGAIN.format('SIGSTOP')}; systemctl show --property NRestarts edgert@dock"
)


def do(box: Box, step: Step) -> Done:
    with box.alone(), (box.folder / "boot.log").open("wb") as log, booted(box, log.fileno()) as enter:
        return outcome(step, [*enter, "sh", "-c", step.command])


def control_groups() -> Path:
    """Return the mount point of control groups of version 2. Raises DeviceError without one."""
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    place = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    if place is None:
        why = "by them systemd keeps devices from services"
        raise DeviceError("no cgroup2 is mounted here", why=why, fix="mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    return place


@contextlib.contextmanager
def booted(box: Box, log: int) -> Iterator[list[str]]:
    """Boot a box, and yield the command prefix that enters it; ``log`` receives the output of its system."""
    group = control_groups() / f"edgert-box-{box.folder.name}"
    _remove(group)
    group.mkdir()
    words = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(group)]
    words += ["unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child"]
    words += ["--propagation", "private", str(BOOT), str(box.base), str(box.folder)]
    system = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield _entered(system, box.folder / "boot.log")
    finally:
        system.kill()  # all that runs in it ends with it
        system.wait()
        _remove(group)


def _entered(system: subprocess.Popen[bytes], log: Path) -> list[str]:
    """Return the command prefix that enters a booted system. Raises DeviceError if it does not boot."""
    until, children = time.monotonic() + _WAIT_S, Path(f"/proc/{system.pid}/task/{system.pid}/children")
    while time.monotonic() < until and system.poll() is None:
        for child in children.read_text().split()[:1]:
            enter = ["nsenter", f"--target={child}", "--all", "--root", "--wd", "env", "-i"]
            enter += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "COLUMNS=120", "SYSTEMD_PAGER="]
            state = subprocess.run(
                [*enter, "systemctl", "is-system-running"], capture_output=True, text=True, check=False
            )
            if state.stdout.strip() in ("running", "degraded"):
                return enter
        time.sleep(0.2)
    why = " / ".join(log.read_text(errors="replace").splitlines()[-4:])
    raise DeviceError("the box does not boot", why=why or f"it is not up after {_WAIT_S:.0f} s", where=str(log))


def _remove(group: Path) -> None:
    """Remove a control group and those in it, whose processes are ending."""
    until = time.monotonic() + _WAIT_S
    for folder in [*sorted(group.rglob("*/"), reverse=True), group] if group.exists() else ():
        while True:
            try:
                folder.rmdir()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
