"""Probes of what runs models, and what they advise on a Jetson and elsewhere."""

import re
from pathlib import Path

import pytest

from edgert.diagnosis import accelerator
from edgert.diagnosis.probe import Answer
from tests.unit.board.tree import jetson, write
from tests.unit.diagnosis.evidence import ABSENT, NO_GPU, WORKING, check, evidence, without

GPU = WORKING["cuda"].facts["gpus"][0]
MEMORY = "mapped memory (integrated, I/O coherent: no copies)"
STUB = "CUDA_ERROR_STUB_LIBRARY"
RTX = Answer({"version": "RTX 1.4.0", "capabilities": ["7.5", "8.6"]})
RTX_NEW = Answer({"version": "RTX 1.7.0"})
H100 = without("cuda", gpus=[{**GPU, "compute": "9.0", "integrated": False}])
LISTED = without("cuda", gpus=[{**GPU, "compute": "8.6", "integrated": False}])
CPU_ONLY = without("onnxruntime", providers=["CPUExecutionProvider"])
NO_DLA_LIBRARY = "ImportError: libnvdla_compiler.so: cannot open shared object file"
NO_CUDART = "ImportError: libcudart.so.12: cannot open shared object file"


def failed(error: str) -> Answer:
    return Answer({}, error=error)


@pytest.mark.parametrize(
    ("probe", "answers", "state", "detail", "fix"),
    [
        ("onnx_runtime", {}, "yes", "1.20.0, providers: CUDA, CPU", ""),
        ("onnx_runtime", {"onnxruntime": ABSENT}, "no", "", "pip install onnxruntime"),
        ("gpu", {}, "yes", f"Orin, compute 8.7, 16.0 GiB, {re.escape(MEMORY)}; driver for CUDA 12.6", ""),
        ("gpu", {"cuda": NO_GPU}, "optional", "none", ""),
        ("gpu", {"cuda": without("cuda", gpus=[GPU, {**GPU, "name": "Other"}])}, "yes", "0: Orin, .*; 1: Other, ", ""),
        ("gpu", {"cuda": without("cuda", gpus=[GPU, GPU])}, "yes", ".* uses 0; another by CUDA_VISIBLE_DEVICES=", ""),
        ("tensorrt", {}, "yes", "10.3.0", ""),
        ("tensorrt", {"tensorrt": ABSENT}, "optional", "", "pip install tensorrt"),
        ("tensorrt", {"tensorrt": ABSENT, "cuda": NO_GPU}, "optional", ".*not needed", ""),
        ("tensorrt", {"cuda": NO_GPU}, "optional", "10.3.0, which neither .*: no NVIDIA GPU here", ""),
        ("tensorrt", {"tensorrt": RTX, "cuda": NO_GPU}, "optional", "RTX 1.4.0, which builds engines here", ""),
        ("tensorrt", {"tensorrt": RTX, "cuda": H100}, "optional", "RTX 1.4.0; compute 9.0 is not .* 7.5, 8.6", None),
        ("tensorrt", {"tensorrt": RTX, "cuda": LISTED}, "yes", "RTX 1.4.0", ""),
        ("dla", {}, "optional", "none: this machine has no DLA", ""),
        ("pycuda", {}, "yes", "", ""),
        ("pycuda", {"pycuda": ABSENT}, "optional", "", ".*nvcc"),
        ("pycuda", {"pycuda": ABSENT, "cuda": NO_GPU}, "optional", "", ""),
        ("pycuda", {"pycuda": failed("ImportError: libcuda.so.1")}, "optional", "", ".*force-reinstall"),
        ("engines", {"cuda": NO_GPU, "tensorrt": ABSENT, "pycuda": ABSENT}, "yes",
         "ONNX Runtime on the CPU, where engines: is left out: no NVIDIA GPU here$", ""),
        ("engines", {"tensorrt": ABSENT}, "optional", "ONNX Runtime on the GPU, .*it lacks TensorRT$", None),
        ("engines", {"pycuda": ABSENT}, "optional", "ONNX Runtime on the CPU, ", "see pycuda"),
        ("engines", {"tensorrt": without("tensorrt", version="8.5.2")}, "optional",
         ".*TensorRT 8.5.2 cannot be used", "update JetPack"),
        ("engines", {"tensorrt": RTX, "cuda": H100}, "optional",
         "ONNX Runtime on the GPU, .*for TensorRT it lacks a supported compute capability$",
         r"engines: \[tensorrt\] tries it anyway"),
        ("engines", {"tensorrt": RTX_NEW}, "yes", "TensorRT RTX 1.7.0, ", ""),
    ],
)  # fmt: skip
def test_a_workstation(
    tmp_path: Path, probe: str, answers: dict[str, Answer], state: str, detail: str, fix: str | None
) -> None:
    check(getattr(accelerator, probe)(evidence(tmp_path, **answers)), state, detail, fix)


@pytest.mark.parametrize(
    ("probe", "answers", "state", "detail", "fix"),
    [
        ("gpu", {"cuda": without("cuda", gpus=[], trouble=STUB)}, "optional", f".*{STUB}", ".*--runtime nvidia"),
        ("gpu", {"cuda": failed(STUB)}, "optional", f".*{STUB}", ".*--runtime nvidia"),
        ("tensorrt", {"tensorrt": ABSENT}, "optional", "", "sudo apt install nvidia-jetpack.*never pip"),
        ("tensorrt", {"tensorrt": failed(NO_DLA_LIBRARY)}, "optional", NO_DLA_LIBRARY, ".*nvidia-l4t-dla-compiler"),
        ("tensorrt", {"tensorrt": failed(NO_CUDART)}, "optional", NO_CUDART, ".*apt-file search libcudart.so.12"),
        ("tensorrt", {"tensorrt": failed("RuntimeError: odd")}, "optional", "RuntimeError: odd", ".*nvidia-jetpack"),
        ("dla", {}, "yes", "2 cores of generation 2, TensorRT sees 2; TensorRT 10.3.0 can use it", ""),
        ("dla", {"tensorrt": without("tensorrt", version="11.2.0"), "dla": Answer({"cores": 0})}, "optional",
         ".*sees 0", ".*11.4.1"),
        ("dla", {"dla": failed("TypeError: no CUDA device")}, "optional", ".*no CUDA device", ".*--runtime nvidia"),
        ("dla", {"tensorrt": ABSENT}, "optional", "", "see TensorRT"),
        ("dla", {"tensorrt": RTX}, "optional", ".*which TensorRT-RTX does not use", None),
        ("pycuda", {"pycuda": ABSENT, "cuda": NO_GPU}, "optional", "", ".*nvcc"),
        ("engines", {}, "yes", "TensorRT 10.3.0, where engines: .*; in FP16.*; placement: dla: the DLA$", None),
        ("engines", {"tensorrt": ABSENT, "onnxruntime": CPU_ONLY}, "optional",
         "ONNX Runtime on the CPU, where engines: is left out; for TensorRT it lacks TensorRT; "
         "for ONNX Runtime on the GPU its CUDA provider$", "see TensorRT"),
        ("engines", {"cuda": NO_GPU}, "optional", ".*for TensorRT it lacks NVIDIA GPU", "see NVIDIA GPU"),
    ],
)  # fmt: skip
def test_a_jetson(
    tmp_path: Path, probe: str, answers: dict[str, Answer], state: str, detail: str, fix: str | None
) -> None:
    check(getattr(accelerator, probe)(evidence(jetson(tmp_path), **answers)), state, detail, fix)


def test_a_thor_has_no_dla(tmp_path: Path) -> None:
    thor = jetson(tmp_path, ("nvidia,p3971-0089+p3834-0008", "nvidia,tegra264"), 125772)
    assert accelerator.dla(evidence(thor)).detail == "none: Jetson T5000 has no DLA"


def test_a_card_without_its_driver(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    found = accelerator.gpu(evidence(tmp_path, cuda=NO_GPU))
    assert "without its CUDA driver" in found.detail and "--gpus all" in found.fix


def test_the_sound_chip_of_a_card_is_no_gpu(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")
    assert accelerator.gpu(evidence(tmp_path, cuda=NO_GPU)).detail == "none"


def test_tensorrt_of_jetpack_that_the_environment_does_not_see(tmp_path: Path) -> None:
    write(jetson(tmp_path), "usr/lib/python3.10/dist-packages/tensorrt/__init__.py", "")
    found = accelerator.tensorrt(evidence(tmp_path, tensorrt=ABSENT))
    assert "python3.10" in found.detail
    assert "/usr/bin/python3.10 -m venv --system-site-packages" in found.fix


def test_tensorrt_without_its_binding(tmp_path: Path) -> None:
    for name in ("libnvinfer.so.10", "libnvinfer.so.10.3.0"):
        write(jetson(tmp_path), f"usr/lib/aarch64-linux-gnu/{name}", "")
    found = accelerator.tensorrt(evidence(tmp_path, tensorrt=ABSENT))
    assert "libnvinfer 10" in found.detail and "python3-libnvinfer" in found.fix


@pytest.mark.parametrize(
    ("revision", "fix"),
    [
        ("R36 (release), REVISION: 4.3", "on the board itself, not in a container: sudo apt install nvidia-l4t-dla-"),
        (
            "R39 (release), REVISION: 2.0",
            "no package has it from JetPack 7.2 on: an image without the DLA, or the host's",
        ),
    ],
)
def test_the_compiler_of_the_dla_is_a_package_up_to_jetpack_6(tmp_path: Path, revision: str, fix: str) -> None:
    """An image for an Orin with JetPack 6 wants it on JetPack 7.2, too, where nothing brings it."""
    root = jetson(tmp_path)
    write(root, "etc/nv_tegra_release", f"# {revision}, GCID: 1")
    missing = Answer({}, error="ImportError: libnvdla_compiler.so: cannot open shared object file")
    assert accelerator.tensorrt(evidence(root, tensorrt=missing)).fix.startswith(fix)
    unseen = accelerator.dla(evidence(root, dla=Answer({"cores": 0})))
    assert unseen.fix.startswith(fix)
