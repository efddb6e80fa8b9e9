"""Probes of the parts that run models: ONNX Runtime, GPU, TensorRT, DLA."""

import re
from pathlib import Path

from dla import supported_by
from edgert.board.host import read_text
from edgert.diagnosis.probe import Evidence, Finding
from edgert.errors import BuildError
from edgert.memory.cuda.gpu_context import Traits, describe_memory
from edgert.units import format_bytes

_JETSON_TENSORRT = "sudo apt install nvidia-jetpack (never pip install tensorrt on a Jetson)"
_FIRST_WITHOUT_DLA_COMPILER = 39
_NO_GPU = "not needed: no NVIDIA GPU here"


def onnx_runtime(evidence: Evidence) -> Finding:
    """Report ONNX Runtime, the engine that runs everywhere."""
    answer = evidence.answers["onnxruntime"]
    if not answer.works:
        return Finding("ONNX Runtime", "no", answer.error or "not installed", "pip install onnxruntime")
    providers = (name.removesuffix("ExecutionProvider") for name in answer.facts["providers"])
    return Finding("ONNX Runtime", "yes", f"{answer.facts['version']}, providers: {', '.join(providers)}")


def gpu(evidence: Evidence) -> Finding:
    """Report the GPUs of the CUDA driver."""
    answer = evidence.answers["cuda"]
    gpus, driver = answer.facts.get("gpus", ()), answer.facts.get("driver")
    if gpus:
        each = []
        for number, one in enumerate(gpus):
            major, _, minor = one["compute"].partition(".")
            shared = describe_memory(Traits(one["integrated"], one["can_map"], (int(major), int(minor))))
            title = f"{number}: " if len(gpus) > 1 else ""  # as CUDA_VISIBLE_DEVICES names them
            each.append(
                f"{title}{one['name']}, compute {one['compute']}, {format_bytes(one['memory_bytes'])}, {shared}"
            )
        if len(gpus) > 1:
            each.append("edgert uses 0; another by CUDA_VISIBLE_DEVICES=NUMBER")
        return Finding("NVIDIA GPU", "yes", f"{'; '.join(each)}; driver for CUDA {driver}")
    trouble = answer.error or answer.facts.get("trouble", "")
    if trouble:
        return Finding("NVIDIA GPU", "optional", f"the CUDA driver does not work: {trouble}", _driver_fix(evidence))
    if driver is None and (evidence.machine.is_jetson or _has_nvidia_card(evidence.root)):
        detail = "here, but without its CUDA driver (libcuda.so.1)"
        return Finding("NVIDIA GPU", "optional", detail, _driver_fix(evidence))
    return Finding("NVIDIA GPU", "optional", "none")


def tensorrt(evidence: Evidence) -> Finding:
    """Report TensorRT's Python binding; on a Jetson, also why this Python does not see that of JetPack."""
    answer = evidence.answers["tensorrt"]
    if answer.works:
        version, beware = str(answer.facts["version"]), capability_note(evidence)
        if not evidence.has_gpu and not evidence.machine.is_jetson:
            does = "builds engines here and runs none" if version.startswith("RTX") else "neither builds nor runs any"
            return Finding("TensorRT", "optional", f"{version}, which {does}: no NVIDIA GPU here")
        return (
            Finding("TensorRT", "optional", f"{version}; {beware}") if beware else Finding("TensorRT", "yes", version)
        )
    if answer.error:
        missing = re.search(r"lib[\w.-]+\.so[.\d]*", answer.error)
        fix = f"find the package of {missing[0]}: apt-file search {missing[0]}" if missing else _JETSON_TENSORRT
        if "libnvdla_compiler" in answer.error:
            fix = _dla_compiler_fix(evidence.machine.l4t)
        return Finding("TensorRT", "optional", answer.error, fix)
    if evidence.machine.is_jetson:
        return _jetson_tensorrt(evidence.root)
    if not evidence.has_gpu:
        return Finding("TensorRT", "optional", _NO_GPU)
    return Finding("TensorRT", "optional", "not installed", "pip install tensorrt")


def capability_note(evidence: Evidence) -> str:
    """Return a note where TensorRT-RTX does not list the GPU's compute capability; empty where it does."""
    listed = evidence.answers["tensorrt"].facts.get("capabilities", ())
    compute = next((gpu["compute"] for gpu in evidence.answers["cuda"].facts.get("gpus", ())), "")
    if not listed or not compute or compute in listed:
        return ""
    return f"compute {compute} is not a supported capability, it lists {', '.join(listed)}: it may run or refuse"


def dla(evidence: Evidence) -> Finding:
    """Report the board's DLA cores, and whether this TensorRT can use them."""
    here, answer = evidence.machine, evidence.answers["tensorrt"]
    if here.board is None or not here.board.dla.cores:
        owner = here.board.title if here.board else "this machine"
        return Finding("DLA", "optional", f"none: {owner} has no DLA")
    cores, generation = here.board.dla.cores, here.board.dla.generation or 0
    detail = f"{cores} core{'s' if cores > 1 else ''} of generation {generation}"
    if not answer.works:
        return Finding("DLA", "optional", f"{detail}, not usable without TensorRT", "see TensorRT")
    if (version := str(answer.facts["version"])).startswith("RTX"):
        return Finding("DLA", "optional", f"{detail}, which TensorRT-RTX does not use", _JETSON_TENSORRT)
    verdict = supported_by(version, generation)
    counted = evidence.answers["dla"]
    seen = counted.facts["cores"] if counted.works else 0
    detail += f"; {counted.error}" if counted.error else f", TensorRT sees {seen}"
    if seen:
        return Finding("DLA", "yes", f"{detail}; {verdict.reason}")
    return Finding("DLA", "optional", f"{detail}; {verdict.reason}", verdict.fix or _dla_compiler_fix(here.l4t))


def pycuda(evidence: Evidence) -> Finding:
    """Report PyCUDA, which gives Python CUDA memory."""
    answer = evidence.answers["pycuda"]
    if answer.works:
        return Finding("pycuda", "yes", str(answer.facts["version"]))
    if answer.error:
        fix = "build it again for this CUDA: pip install --force-reinstall --no-cache-dir pycuda"
        return Finding("pycuda", "optional", answer.error, fix)
    if not evidence.has_gpu and not evidence.machine.is_jetson:
        return Finding("pycuda", "optional", _NO_GPU)
    fix = "PATH=/usr/local/cuda/bin:$PATH pip install pycuda (it compiles, with the CUDA toolkit's nvcc)"
    return Finding("pycuda", "optional", "not installed", fix)


def engines(evidence: Evidence) -> Finding:
    """Report the engine that runs models of a pipeline without ``engines:``, and why not a better one.

    It is the choice of :func:`~edgert.assemble.default_engines.with_default_engines`.
    """
    left_out, here = "where engines: is left out", evidence.machine
    if not evidence.has_gpu and not here.is_jetson:
        return Finding("engines", "yes", f"ONNX Runtime on the CPU, {left_out}: no NVIDIA GPU here")
    from edgert.backend.tensorrt.library import kind_of  # this import takes half a second

    trt, providers = evidence.answers["tensorrt"], evidence.answers["onnxruntime"].facts.get("providers", ())
    version = str(trt.facts.get("version", ""))
    both = [] if evidence.has_gpu else ["NVIDIA GPU"]
    both += [] if evidence.answers["pycuda"].works else ["pycuda"]
    wanted = [*([] if trt.works else ["TensorRT"]), *both]
    fix = f"see {' and '.join(wanted)}"
    try:
        if version and not version.startswith("RTX"):
            kind_of(version)
    except BuildError as error:
        wanted, fix = [f"a release it can use ({error.what}: {error.why})"], error.fix
    if not wanted and capability_note(evidence):
        wanted, fix = ["a supported compute capability"], "engines: [tensorrt] tries it anyway"
    if not wanted:
        dla = f"; placement: dla: {here.why_no_dla or 'the DLA'}" if here.board and here.board.dla.cores else ""
        return Finding("engines", "yes", f"TensorRT {version}, {left_out}; in FP16, where precision: is, too{dla}")
    why = f"for TensorRT it lacks {', '.join(wanted)}"
    if lacking := [*([] if "CUDAExecutionProvider" in providers else ["its CUDA provider"]), *both]:
        why += f"; for ONNX Runtime on the GPU {', '.join(lacking)}"
    return Finding("engines", "optional", f"ONNX Runtime on the {'CPU' if lacking else 'GPU'}, {left_out}; {why}", fix)


def _dla_compiler_fix(l4t: str) -> str:
    """Return how to install libnvdla_compiler.so on a release of Jetson Linux.

    JetPack 7 has no package of it, but an older TensorRT, such as that of a container, still needs it.
    """
    if int(l4t.partition(".")[0] or 0) >= _FIRST_WITHOUT_DLA_COMPILER:
        return (
            "no package has it from JetPack 7.2 on: an image without the DLA, or the host's own TensorRT, on the board"
        )
    on_board = "on the board itself, not in a container: sudo apt install nvidia-l4t-dla-compiler"
    return f"{on_board}; a container gets it by docker run --runtime nvidia ..."


def _driver_fix(evidence: Evidence) -> str:
    if evidence.machine.is_jetson:
        return "in a container: docker run --runtime nvidia ...; else: sudo apt install nvidia-l4t-cuda"
    return "in a container: docker run --gpus all ...; else: sudo ubuntu-drivers install, then reboot"


def _has_nvidia_card(root: Path) -> bool:
    """Return whether an NVIDIA display controller is on the PCI bus (vendor 0x10de, class 0x03….)."""
    ids = ((read_text(one / "vendor"), read_text(one / "class")) for one in (root / "sys/bus/pci/devices").glob("*"))
    return any(vendor.startswith("0x10de") and kind.startswith("0x03") for vendor, kind in ids)


def _jetson_tensorrt(root: Path) -> Finding:
    """Report TensorRT on a Jetson whose binding this Python does not see, and how to make it visible."""
    bound = next(iter(sorted(root.glob("usr/lib/python3*/dist-packages/tensorrt"))), None)
    if bound is not None:
        interpreter = bound.parents[1].name
        detail = f"here for the system's {interpreter}, but this Python does not see it"
        fix = f"make the environment again: /usr/bin/{interpreter} -m venv --system-site-packages .venv"
        return Finding("TensorRT", "optional", detail, fix)
    library = next(iter(sorted(root.glob("usr/lib/*/libnvinfer.so.*"), key=lambda path: len(path.name))), None)
    if library is not None:
        version = library.name.rpartition(".so.")[2]
        fix = "sudo apt install python3-libnvinfer (never pip install tensorrt on a Jetson)"
        return Finding("TensorRT", "optional", f"libnvinfer {version} is here, its Python binding is not", fix)
    return Finding("TensorRT", "optional", "not installed", _JETSON_TENSORRT)
