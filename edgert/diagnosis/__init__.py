"""Diagnosis of this machine: the findings that ``edgert doctor`` prints, as plain data."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from edgert.board import detect
from edgert.diagnosis import accelerator, machine
from edgert.diagnosis.probe import Answer, Evidence, Finding, State, ask_all, facts
from edgert.errors import ConfigError, EdgertError
from edgert.kinds import DECODERS, foreign, misnamed_decoders

__all__ = ["Finding", "State", "diagnose", "doctor", "facts"]
Probe = Callable[[Evidence], Finding]
Ask = Callable[[Iterable[str]], Mapping[str, Answer]]
_PACKAGES = ("onnxruntime", "cv2", "av", "gi", "cuda", "tensorrt", "pycuda", "nvdec", "display")


def extensions(evidence: Evidence) -> Finding:
    """Report every kind that an installed package adds; each is imported to test it."""
    found = []
    for registry, claim in foreign():
        trouble = ""
        try:
            registry.get(claim.name)
        except ConfigError as error:
            trouble = f"{error.what}: {error.why}" if "claimed by" in error.what else error.why
        found.append((registry.noun, claim, trouble))
    tasks = ", ".join(f"{task}.NAME" for task in DECODERS)
    found += [("decoder", claim, f"its name is not one of {tasks}") for claim in misnamed_decoders()]
    if not found:
        return Finding("extensions", "optional", "no installed package adds sources, stages, sinks, decoders, trackers")
    lines = [f"{noun} {one.name} of {one}{why and f', unusable: {why}'}" for noun, one, why in found]
    broken = [f"{one}" for _, one, why in found if why]
    fix = f"update or uninstall {', '.join(dict.fromkeys(broken))}" if broken else ""
    return Finding("extensions", "optional" if broken else "yes", "; ".join(lines), fix)


PROBES: dict[str, Probe] = {
    "Python": machine.python,
    "edgert": machine.edgert,
    "board": machine.board,
    "CPU": machine.cpu,
    "memory": machine.memory,
    "over-current": machine.over_current,
    "cache": machine.cache,
    "clock": machine.time_of_day,
    "ONNX Runtime": accelerator.onnx_runtime,
    "NVIDIA GPU": accelerator.gpu,
    "TensorRT": accelerator.tensorrt,
    "DLA": accelerator.dla,
    "pycuda": accelerator.pycuda,
    "engines": accelerator.engines,
    "PyAV": machine.pyav,
    "codecs": machine.codecs,
    "NVDEC": machine.nvdec,
    "NVENC": machine.nvenc,
    "OpenCV": machine.opencv,
    "OpenCV wheels": machine.opencv_wheels,
    "GStreamer": machine.gstreamer,
    "cameras": machine.camera_devices,
    "display": machine.display,
    "extensions": extensions,
}


def doctor() -> tuple[Finding, ...]:
    """Return a finding for each part of this machine that edgert can use; edgert cannot run if the state of one is no.

    It uses no network and opens no camera. The display is opened for a moment, and shows nothing.
    """
    return diagnose()


def diagnose(*, root: str | Path = "/", ask: Ask = ask_all) -> tuple[Finding, ...]:
    """Return the findings about the machine under a folder and the packages of this Python; see :func:`doctor`.

    Args:
        root: root of the Linux file tree.
        ask: function that returns the answers of vendor packages by name; the default asks each in its own process.
    """
    root = Path(root)
    here = detect(root)
    # TensorRT is asked for DLA cores only if there are any, because this needs a GPU context.
    packages = (*_PACKAGES, "dla") if here.board and here.board.dla.cores else _PACKAGES
    evidence = Evidence(root, here, ask(packages))
    found = []
    for name, probe in PROBES.items():
        try:
            found.append(probe(evidence))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, EdgertError) as error:
            fix = "please report this: edgert's own check of this machine failed"  # other findings are still shown
            found.append(Finding(name, "no", f"{type(error).__name__}: {error}".splitlines()[0], fix))
    return tuple(found)
