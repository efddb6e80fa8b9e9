"""Probes of what runs models, and what they advise on a Jetson and elsewhere."""

from pathlib import Path

import pytest

from edgert.diagnosis import accelerator
from edgert.diagnosis.probe import Answer
from tests.unit.board.tree import jetson, write
from tests.unit.diagnosis.evidence import ABSENT, NO_GPU, WORKING, evidence, without


def test_onnx_runtime_is_required(tmp_path: Path) -> None:
    found = accelerator.onnx_runtime(evidence(tmp_path))
    assert (found.state, found.detail) == ("yes", "1.20.0, providers: CUDA, CPU")
    found = accelerator.onnx_runtime(evidence(tmp_path, onnxruntime=ABSENT))
    assert (found.state, found.fix) == ("no", "pip install onnxruntime")


def test_a_gpu(tmp_path: Path) -> None:
    found = accelerator.gpu(evidence(tmp_path))
    memory = "mapped memory (integrated, I/O coherent: no copies)"
    assert (found.state, found.detail) == ("yes", f"Orin, compute 8.7, 16.0 GiB, {memory}; driver for CUDA 12.6")


def test_no_gpu_at_all(tmp_path: Path) -> None:
    found = accelerator.gpu(evidence(tmp_path, cuda=NO_GPU))
    assert (found.state, found.detail, found.fix) == ("optional", "none", "")


def test_several_gpus_have_the_numbers_that_choose_one_of_them(tmp_path: Path) -> None:
    one = WORKING["cuda"].facts["gpus"][0]
    found = accelerator.gpu(evidence(tmp_path, cuda=without("cuda", gpus=[one, {**one, "name": "Other"}])))
    assert found.detail.startswith(f"0: {one['name']}, ") and "; 1: Other, " in found.detail
    assert "edgert uses 0; another by CUDA_VISIBLE_DEVICES=NUMBER" in found.detail


def test_a_card_without_its_driver(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    found = accelerator.gpu(evidence(tmp_path, cuda=NO_GPU))
    assert "without its CUDA driver" in found.detail and "--gpus all" in found.fix


def test_the_sound_chip_of_a_card_is_no_gpu(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")
    assert accelerator.gpu(evidence(tmp_path, cuda=NO_GPU)).detail == "none"


@pytest.mark.parametrize(
    "answer",
    [
        Answer({"driver": "12.6", "gpus": [], "trouble": "CUDA_ERROR_STUB_LIBRARY"}),
        Answer({}, error="CUDA_ERROR_STUB_LIBRARY"),
    ],
)
def test_a_driver_that_fails(tmp_path: Path, answer: Answer) -> None:
    found = accelerator.gpu(evidence(jetson(tmp_path), cuda=answer))
    assert found.state == "optional" and "CUDA_ERROR_STUB_LIBRARY" in found.detail and "--runtime nvidia" in found.fix


def test_tensorrt_elsewhere(tmp_path: Path) -> None:
    assert accelerator.tensorrt(evidence(tmp_path)).detail == "10.3.0"
    assert accelerator.tensorrt(evidence(tmp_path, tensorrt=ABSENT)).fix == "pip install tensorrt"
    found = accelerator.tensorrt(evidence(tmp_path, tensorrt=ABSENT, cuda=NO_GPU))
    assert (found.state, found.fix) == ("optional", "") and "not needed" in found.detail


NO_H100 = "compute 9.0 is not a supported capability, it lists 7.5, 8.6: it may run or refuse"
RTX = Answer({"version": "RTX 1.4.0", "capabilities": ["7.5", "8.6"]})
H100 = without("cuda", gpus=[{**WORKING["cuda"].facts["gpus"][0], "compute": "9.0", "integrated": False}])


@pytest.mark.parametrize(
    ("answer", "does"),
    [(RTX, "RTX 1.4.0, which builds engines here and runs none"), (WORKING["tensorrt"], "10.3.0, which neither")],
)
def test_a_tensorrt_without_a_gpu_does_not_work(tmp_path: Path, answer: Answer, does: str) -> None:
    found = accelerator.tensorrt(evidence(tmp_path, tensorrt=answer, cuda=NO_GPU))
    assert found.state == "optional" and found.detail.startswith(does)
    assert found.detail.endswith(": no NVIDIA GPU here") and not found.fix


def test_a_gpu_that_tensorrt_rtx_does_not_list(tmp_path: Path) -> None:
    found = accelerator.tensorrt(evidence(tmp_path, tensorrt=RTX, cuda=H100))
    assert (found.state, found.detail) == ("optional", f"RTX 1.4.0; {NO_H100}")
    listed = without("cuda", gpus=[{**H100.facts["gpus"][0], "compute": "8.6"}])
    assert accelerator.tensorrt(evidence(tmp_path, tensorrt=RTX, cuda=listed)).state == "yes"


def test_tensorrt_is_never_installed_by_pip_on_a_jetson(tmp_path: Path) -> None:
    found = accelerator.tensorrt(evidence(jetson(tmp_path), tensorrt=ABSENT))
    assert found.fix.startswith("sudo apt install nvidia-jetpack") and "never pip" in found.fix


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
    ("error", "fix"),
    [
        ("ImportError: libnvdla_compiler.so: cannot open shared object file", "nvidia-l4t-dla-compiler"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "apt-file search libcudart.so.12"),
        ("RuntimeError: odd", "nvidia-jetpack"),
    ],
)
def test_a_broken_tensorrt(tmp_path: Path, error: str, fix: str) -> None:
    found = accelerator.tensorrt(evidence(jetson(tmp_path), tensorrt=Answer({}, error=error)))
    assert (found.state, found.detail) == ("optional", error) and fix in found.fix


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


def test_dla(tmp_path: Path) -> None:
    found = accelerator.dla(evidence(jetson(tmp_path)))
    assert found.state == "yes"
    assert found.detail.startswith("2 cores of generation 2, TensorRT sees 2; TensorRT 10.3.0 can use it")


def test_dla_that_this_tensorrt_does_not_know(tmp_path: Path) -> None:
    answers = {"tensorrt": without("tensorrt", version="11.2.0"), "dla": Answer({"cores": 0})}
    found = accelerator.dla(evidence(jetson(tmp_path), **answers))
    assert found.state == "optional" and "sees 0" in found.detail and "11.4.1" in found.fix


def test_dla_whose_builder_fails(tmp_path: Path) -> None:
    found = accelerator.dla(evidence(jetson(tmp_path), dla=Answer({}, error="TypeError: no CUDA device")))
    assert found.state == "optional" and "no CUDA device" in found.detail and "--runtime nvidia" in found.fix


def test_dla_without_tensorrt(tmp_path: Path) -> None:
    assert accelerator.dla(evidence(jetson(tmp_path), tensorrt=ABSENT)).fix == "see TensorRT"


def test_boards_without_dla(tmp_path: Path) -> None:
    assert accelerator.dla(evidence(tmp_path)).detail == "none: this machine has no DLA"
    thor = jetson(tmp_path, ("nvidia,p3971-0089+p3834-0008", "nvidia,tegra264"), 125772)
    assert accelerator.dla(evidence(thor)).detail == "none: Jetson T5000 has no DLA"
    found = accelerator.dla(evidence(jetson(tmp_path / "orin"), tensorrt=RTX))
    assert found.state == "optional" and "which TensorRT-RTX does not use" in found.detail


def test_pycuda(tmp_path: Path) -> None:
    assert accelerator.pycuda(evidence(tmp_path)).state == "yes"
    assert "nvcc" in accelerator.pycuda(evidence(tmp_path, pycuda=ABSENT)).fix
    assert not accelerator.pycuda(evidence(tmp_path, pycuda=ABSENT, cuda=NO_GPU)).fix
    assert "nvcc" in accelerator.pycuda(evidence(jetson(tmp_path), pycuda=ABSENT, cuda=NO_GPU)).fix
    broken = Answer({}, error="ImportError: libcuda.so.1")
    assert "force-reinstall" in accelerator.pycuda(evidence(tmp_path, pycuda=broken)).fix


class TestEngines:
    """What a pipeline without ``engines:`` runs on."""

    def test_without_a_gpu(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(tmp_path, cuda=NO_GPU, tensorrt=ABSENT, pycuda=ABSENT))
        assert (found.state, found.fix) == ("yes", "")
        assert found.detail == "ONNX Runtime on the CPU, where engines: is left out: no NVIDIA GPU here"

    def test_a_jetson_with_everything(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(jetson(tmp_path)))
        assert found.state == "yes" and found.detail.startswith("TensorRT 10.3.0, where engines: is left out; in FP16")
        assert found.detail.endswith("; placement: dla: the DLA")

    def test_a_jetson_without_tensorrt(self, tmp_path: Path) -> None:
        no_cuda = without("onnxruntime", providers=["CPUExecutionProvider"])
        found = accelerator.engines(evidence(jetson(tmp_path), tensorrt=ABSENT, onnxruntime=no_cuda))
        assert (found.state, found.fix) == ("optional", "see TensorRT")
        assert found.detail == (
            "ONNX Runtime on the CPU, where engines: is left out; for TensorRT it lacks TensorRT; "
            "for ONNX Runtime on the GPU its CUDA provider"
        )

    def test_a_jetson_in_a_container_without_its_driver(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(jetson(tmp_path), cuda=NO_GPU))
        assert found.fix == "see NVIDIA GPU" and "for TensorRT it lacks NVIDIA GPU" in found.detail

    def test_a_workstation_with_onnx_runtime_on_cuda(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(tmp_path, tensorrt=ABSENT))
        assert found.detail.startswith("ONNX Runtime on the GPU, ") and found.detail.endswith("it lacks TensorRT")

    def test_without_pycuda(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(tmp_path, pycuda=ABSENT))
        assert found.fix == "see pycuda" and found.detail.startswith("ONNX Runtime on the CPU, ")

    def test_a_tensorrt_that_is_too_old(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(tmp_path, tensorrt=without("tensorrt", version="8.5.2")))
        assert "TensorRT 8.5.2 cannot be used" in found.detail and found.fix.startswith("update JetPack")

    def test_a_gpu_that_tensorrt_rtx_does_not_list(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(tmp_path, tensorrt=RTX, cuda=H100))
        assert found.state == "optional" and found.detail.startswith("ONNX Runtime on the GPU, ")
        assert found.detail.endswith("for TensorRT it lacks a supported compute capability")
        assert found.fix == "engines: [tensorrt] tries it anyway"

    def test_tensorrt_rtx_of_a_workstation(self, tmp_path: Path) -> None:
        found = accelerator.engines(evidence(tmp_path, tensorrt=without("tensorrt", version="RTX 1.7.0")))
        assert found.state == "yes" and found.detail.startswith("TensorRT RTX 1.7.0, ")
