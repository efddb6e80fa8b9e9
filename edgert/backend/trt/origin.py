"""What an engine depends on: the machine it is built on and runs on, and what was asked for. Told apart by name.

An engine that was built under other facts is never run, and never built again without saying which of them changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from edgert.backend.trt.library import Library
from edgert.backend.trt.request import GPU, BuildRequest
from edgert.board import Machine
from edgert.board.cuda import CudaDriver
from edgert.board.release import package_version

Facts = Mapping[str, str]
"""Name → value, both for people. A value that begins with ``#`` is a digest."""

DLA_COMPILER = "nvidia-l4t-dla-compiler"
"""Debian package of Jetson Linux with the DLA's compiler: https://docs.nvidia.com/jetson/archives/."""
_RECIPE = "2"
"""Raise it when edgert drives TensorRT in another way, so that engines are built again."""


def machine_facts(library: Library, machine: Machine, driver: CudaDriver | None, root: Path = Path("/")) -> Facts:
    """What of a machine an engine depends on; what it has not is left out."""
    gpu = driver.gpus[0] if driver is not None and driver.gpus else None
    found = {
        "TensorRT": f"RTX {library.version}" if library.kind == "rtx" else library.version,
        "module": machine.name,
        "L4T": machine.l4t,
        "GPU": f"{gpu.name}, compute {gpu.compute}" if gpu else "",
        "CUDA driver": driver.version if driver is not None else "",
        "DLA software": package_version(DLA_COMPILER, root) if machine.is_jetson else "",
        "power mode": machine.mode,
    }
    return {name: value for name, value in found.items() if value}


def request_facts(request: BuildRequest) -> Facts:
    """What was asked for. The timing cache makes no difference: it saves time."""
    placed = {name: where for name, where in request.placement.items() if where != GPU}
    settings = [request.obey, request.version_compatible, request.refit, request.strip, request.direct_io]
    formats = {name: asdict(form) for name, form in request.formats.items()}
    shapes = [{name: asdict(span) for name, span in one.items()} for one in request.profiles]
    own = {"operators": _digest([_digest(Path(file).read_bytes()) for file in request.operators])}
    return {
        **(own if request.operators else {}),
        "model": _digest(request.model),
        "precision": request.precision,
        "placement": _digest(placed) if placed else GPU,
        "float16 nodes": _digest(request.half) if request.half else "none",
        "calibration": _digest(request.calibration) if request.calibration else "none",
        "shapes": _digest(shapes) if request.profiles else "static",
        "formats": _digest(formats) if formats else "plain",
        "memory pools": _digest(asdict(request.pools)),
        "settings": _digest([*settings, request.optimization_level, request.compute, _RECIPE]),
    }


def key_of(facts: Facts) -> str:
    """The name under which an engine is kept. Equal facts give equal keys."""
    return f"trt-{hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:40]}"


def changes(before: Facts, now: Facts) -> tuple[str, ...]:
    """What differs, each in words: ``TensorRT 10.3.0 → 10.7.0``, ``another model``."""
    return tuple(
        _change(name, before.get(name, ""), now.get(name, ""))
        for name in dict.fromkeys((*now, *before))
        if before.get(name) != now.get(name)
    )


def _change(name: str, before: str, now: str) -> str:
    if before.startswith("#") and now.startswith("#"):
        return f"another {name}" if not name.endswith("s") else f"other {name}"
    return f"{name} {_shown(before)} → {_shown(now)}"


def _shown(value: str) -> str:
    return f"{value[:9]}…" if value.startswith("#") else value or "unknown"


def _digest(value: object) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return f"#{hashlib.sha256(content).hexdigest()[:40]}"
