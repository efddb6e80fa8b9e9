"""What is on this machine: all probes, one after the other."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from edgert.board import Machine, detect
from edgert.diagnosis import accelerator, machine
from edgert.diagnosis.probe import Answer, Evidence, Finding, ask_all
from edgert.errors import ConfigError, EdgertError
from edgert.kinds import DECODERS, Claim, Registry, foreign, strays

Probe = Callable[[Evidence], Finding]
Ask = Callable[[Iterable[str]], Mapping[str, Answer]]
_PACKAGES = ("onnxruntime", "cv2", "av", "gi", "cuda", "tensorrt", "pycuda", "nvdec")


def extensions(evidence: Evidence) -> Finding:
    """Every kind that an installed package adds, imported to see whether it can be used."""
    found = [(registry.noun, claim, _trouble(registry, claim)) for registry, claim in foreign()]
    tasks = ", ".join(f"{task}.NAME" for task in DECODERS)
    found += [("decoder", claim, f"its name is not one of {tasks}") for claim in strays()]
    if not found:
        return Finding("extensions", "optional", "no installed package adds sources, stages, sinks, decoders, trackers")
    lines = [f"{noun} {one.name} of {one}{why and f', unusable: {why}'}" for noun, one, why in found]
    broken = [f"{one}" for _, one, why in found if why]
    fix = f"update or uninstall {', '.join(dict.fromkeys(broken))}" if broken else ""
    return Finding("extensions", "optional" if broken else "yes", "; ".join(lines), fix)


def _trouble(registry: Registry, claim: Claim) -> str:
    try:
        registry.get(claim.name)
    except ConfigError as error:
        return f"{error.what}: {error.why}" if "claimed by" in error.what else error.why
    return ""


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
    "PyAV": machine.pyav,
    "codecs": machine.codecs,
    "NVDEC": machine.nvdec,
    "OpenCV": machine.opencv,
    "OpenCV wheels": machine.opencv_wheels,
    "GStreamer": machine.gstreamer,
    "cameras": machine.camera_devices,
    "extensions": extensions,
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
