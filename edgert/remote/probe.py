"""Probe of the connected board: its edgert, board and software, and whether a bundle fits them."""

import json
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from edgert import installation, units
from edgert._version import __version__
from edgert.board import HOST, THIS_MACHINE, record
from edgert.compiler.build_target import BuildTarget, build_target
from edgert.config import PipelineFile, engine_choice
from edgert.errors import ArtifactError, ConfigError, DeviceError
from edgert.remote.link import Link, Poll

_DEFAULT_PROGRAMS = (("edgert",), ("python3", "-m", "edgert"))
_NOT_FOUND = (126, 127)
"""Exit codes of a shell for a command that is missing or cannot be run (POSIX.1-2024, 2.8.2)."""
_NO_MODULE = re.compile(r"No module named '?edgert\b")


@dataclass(frozen=True, slots=True)
class RemoteBoard:
    """The connected board.

    ``mode``, ``jetpack`` and ``tensorrt`` are empty where unknown or missing. The two ``_fix`` say how to install a
    package; empty where it is there.
    """

    name: str
    mode: str
    jetpack: str
    tensorrt: str
    tensorrt_fix: str
    cache: str
    free_bytes: int
    pycuda_fix: str = ""

    def __str__(self) -> str:
        parts = [self.name, self.jetpack and f"JetPack {self.jetpack}", self.mode]
        parts += [self.tensorrt and f"TensorRT {self.tensorrt}", f"{units.format_bytes(self.free_bytes)} free"]
        return ", ".join(filter(None, parts))


def probe_board(address: str, program: str | None, poll: Poll = bool) -> tuple[Link, RemoteBoard]:
    """Find edgert on the board and run its ``doctor``. Blocks until done.

    Without ``program``, a path from the user's home folder, ``edgert`` and ``python3 -m edgert`` are tried. Raises
    DeviceError where edgert is missing there, has another version, or cannot run.
    """
    programs = _DEFAULT_PROGRAMS if program is None else ((program.removeprefix("~/"),),)
    for words in programs:
        link = Link(address, words)
        with link.call("doctor", "--json", "-") as call:
            code, text = call.result(poll)
            is_missing = code in _NOT_FOUND or bool(_NO_MODULE.search(call.stderr()))
            if not is_missing:
                return link, read_doctor(text, link, call.stderr())
    tried = " and ".join(repr(shlex.join(words)) for words in programs)
    raise DeviceError(
        f"edgert is not installed on {address}",
        why=f"{tried} cannot be run there by a shell that is not interactive",
        fix="on the board, in a clone of this version named edgert: scripts/setup-jetson; "
        "then here: --remote-edgert edgert/.venv/bin/edgert",
    )


def read_doctor(text: str, link: Link, stderr: str = "") -> RemoteBoard:
    """Return the board that ``edgert doctor --json -`` describes. Raises DeviceError: edgert cannot be used there."""
    start = re.search(r"^\{", text, re.MULTILINE)  # a login shell may have written lines before it
    try:
        return _board_of(json.loads(text[start.start() :] if start else ""), link)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise DeviceError(
            f"edgert does not work on {link.address}",
            why=stderr.strip().splitlines()[-1] if stderr.strip() else "its doctor wrote nothing that can be read",
            fix=f"ssh {link.address} {shlex.join(link.program)} doctor",
        ) from error


def _board_of(found: dict[str, Any], link: Link) -> RemoteBoard:
    """Return the board of a doctor's JSON; other JSON raises errors of Python."""
    machine = found.get("machine", {})
    version, ours = machine.get("edgert"), installation.wheel(__version__)
    if version != __version__:
        raise DeviceError(
            f"{link.address} has edgert {version or 'of an earlier version'}, this is edgert {__version__}",
            why="a bundle is made and compiled by one version",
            where=f"{link.address}: {shlex.join(link.program)}",
            fix=f"copy dist/{ours} there (`make wheel` writes it); with that edgert's pip: pip install it",
        )
    broken = [finding for finding in found["findings"] if finding["state"] == "no"]
    if broken:
        raise DeviceError(
            f"edgert cannot run on {link.address}",
            why="; ".join(f"{finding['name']}: {finding['detail']}" for finding in broken),
            fix="; ".join(finding["fix"] for finding in broken if finding["fix"]),
        )
    tensorrt = next(finding for finding in found["findings"] if finding["name"] == "TensorRT")
    pycuda = next((finding for finding in found["findings"] if finding["name"] == "pycuda"), {"state": "yes"})
    release = re.match(r"\d+\.\d+\.\d+", tensorrt["detail"]) if tensorrt["state"] == "yes" else None
    facts = {
        "name": machine["board"],
        **{key: machine[key] for key in ("mode", "jetpack", "cache", "free_bytes")},
        "tensorrt": release[0] if release else "",
        "tensorrt_fix": "" if release else f"{tensorrt['detail']}; {tensorrt['fix']}".rstrip("; "),
        "pycuda_fix": "" if pycuda["state"] == "yes" else f"{pycuda['detail']}; {pycuda['fix']}".rstrip("; "),
    }
    return TypeAdapter(RemoteBoard).validate_python(facts)


# Checks whether a board can compile a bundle, before minutes of work.

_BASE_BYTES, _SPACE_FACTOR = 64 * 2**20, 4
"""Space needed: for logs; and for the bundle as received, unpacked, with its engines, and as sent back."""


def remote_target(
    file: PipelineFile, found: RemoteBoard, board: str | None, mode: str | None, tensorrt: str | None
) -> BuildTarget:
    """Return the build target that a pipeline and the options name; by default, the connected board."""
    requested = board or file.config.board
    if requested in THIS_MACHINE and board is None:
        requested = found.name
    if requested != found.name or requested == HOST:
        return build_target(file, requested, mode, tensorrt)
    known = bool(found.mode) and record.find_board(requested).has_mode(found.mode)
    return build_target(file, requested, mode or (found.mode if known else None), tensorrt or found.tensorrt or None)


def check_target(found: RemoteBoard, address: str, board: str, engines: Collection[str], tensorrt: str) -> None:
    """Check that a bundle for a board, some engines and a TensorRT release fits the connected board.

    Raises ConfigError for another board or major release of TensorRT, DeviceError where it has no TensorRT.
    """
    if board not in (HOST, found.name):
        what = "is not a Jetson" if found.name == HOST else f"is {found.name}"
        raise ConfigError(
            f"this is built for {board}, and {address} {what}",
            why="its placement, scales and predictions are for another board",
            where="--remote",
            fix=f"leave --board out, or write --board {found.name}",
        )
    if not {engine_choice.TENSORRT, engine_choice.TENSORRT_DLA}.intersection(engines):
        return
    if not found.tensorrt:
        raise DeviceError(
            f"TensorRT is not installed on {address}",
            why=found.tensorrt_fix,
            where=address,
            fix="edgert doctor, on the board, shows how to get it",
        )
    if tensorrt.split(".")[0] != found.tensorrt.split(".")[0]:
        raise ConfigError(
            f"this is built for TensorRT {tensorrt}, and {address} has {found.tensorrt}",
            why="they take scales and precisions in different forms",
            where="--trt",
            fix="build the pipeline again without --trt: the board's release is then used",
        )


def pycuda_note(found: RemoteBoard, address: str, engines: Collection[str]) -> str:
    """Return a note that engines are compiled, but not run, without PyCUDA; empty if it is installed or not needed."""
    if not found.pycuda_fix or not {engine_choice.TENSORRT, engine_choice.TENSORRT_DLA}.intersection(engines):
        return ""
    return (
        f"PyCUDA is not installed on {address}: engines are compiled there, but not checked, timed or run "
        f"({found.pycuda_fix}); in a clone on the board, scripts/setup-jetson installs it"
    )


def check_space(found: RemoteBoard, address: str, size_bytes: int) -> None:
    """Check the free space for a bundle of this size. Raises ArtifactError: the board's disk has too little."""
    needed = _BASE_BYTES + _SPACE_FACTOR * size_bytes
    if found.free_bytes < needed:
        raise ArtifactError(
            f"the disk of {address} is full",
            why=f"{units.format_bytes(found.free_bytes)} are free, {units.format_bytes(needed)} are needed: "
            f"{_SPACE_FACTOR} times the bundle, for it and its engines",
            where=f"{address}: {found.cache}",
            fix="free some space there, or point EDGERT_CACHE at another disk",
        )
