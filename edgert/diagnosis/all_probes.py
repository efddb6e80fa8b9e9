"""What is on this machine: all probes, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from edgert.board import Machine, detect
from edgert.diagnosis import accelerator, extension, machine
from edgert.diagnosis import machine as media
from edgert.diagnosis.probe import Answer, Evidence, Finding, ask_all
from edgert.errors import EdgertError

Probe = Callable[[Evidence], Finding]
Ask = Callable[[Iterable[str]], Mapping[str, Answer]]
_PACKAGES = ("onnxruntime", "cv2", "av", "gi", "cuda", "tensorrt", "pycuda", "nvdec")

PROBES: dict[str, Probe] = {
    "Python": machine.python,
    "edgert": machine.edgert,
    "board": machine.board,
    "CPU": machine.cpu,
    "memory": machine.memory,
    "cache": machine.cache,
    "ONNX Runtime": accelerator.onnx_runtime,
    "NVIDIA GPU": accelerator.gpu,
    "TensorRT": accelerator.tensorrt,
    "DLA": accelerator.dla,
    "pycuda": accelerator.pycuda,
    "PyAV": media.pyav,
    "codecs": media.codecs,
    "NVDEC": media.nvdec,
    "OpenCV": media.opencv,
    "OpenCV wheels": media.opencv_wheels,
    "GStreamer": media.gstreamer,
    "cameras": media.camera_devices,
    "extensions": extension.extensions,
}


def doctor(*, root: str | Path = "/", ask: Ask = ask_all) -> tuple[Finding, ...]:
    """Looks at the machine under ``root`` and at the packages of this Python. Uses no network and opens no device.

    Args:
        root: where the files of a running Linux are.
        ask: returns the answers of vendor packages by name; the default asks each in a separate process.

    Returns:
        A finding for each part that edgert can use. edgert cannot run where the state of one is ``no``.
    """
    root = Path(root)
    here = detect(root)
    evidence = Evidence(root, here, ask(_questions(here)))
    return tuple(_isolated(name, probe, evidence) for name, probe in PROBES.items())


def _questions(here: Machine) -> tuple[str, ...]:
    """TensorRT is asked for DLA cores only where there are any: it needs a GPU context for that."""
    return (*_PACKAGES, "dla") if here.board and here.board.dla.cores else _PACKAGES


def _isolated(name: str, probe: Probe, evidence: Evidence) -> Finding:
    """What the probe found; a probe that fails is a finding too, and does not hide the others."""
    try:
        return probe(evidence)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EdgertError) as error:
        fix = "please report this: a look at this machine failed in edgert itself"
        return Finding(name, "no", f"{type(error).__name__}: {error}".splitlines()[0], fix)
