"""Kernels: compiled once for each GPU and each combination, kept between runs."""

from pathlib import Path
from typing import Any, cast

import pytest

from edgert.config import InputConfig
from edgert.errors import ArtifactError, BuildError
from edgert.files import FileStore
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Nvrtc
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu_target import target
from tests.unit.stages.gpu.test_gpu_inference import Rig

LOG = 'preprocess.cu(12): error: identifier "half4" is undefined'


class Compiler:
    """Notes what it is asked, and refuses what it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.asked = fails, list[tuple[str, tuple[str, ...]]]()

    def compile(self, source: str, name: str, options: tuple[str, ...]) -> bytes:
        self.asked.append((name, options))
        if self.fails:
            raise BuildError(f"the kernel {name} does not compile", why=LOG)
        return b"cubin"


def kernels(compiler: Compiler, store: Any = None, compute: tuple[int, int] = (8, 7)) -> Kernels:
    device = CudaDevice(CudaDouble(compute=compute), 0, Counter())
    return Kernels(device, store, lambda: cast("Nvrtc", compiler))


def test_each_combination_is_compiled_once() -> None:
    compiler = Compiler()
    made = kernels(compiler)
    for half in (0, 1, 0, 1):
        made.kernel("decode", {"HALF": half}, function="candidates")
        made.kernel("decode", {"HALF": half}, function="suppress")
    assert [options[0] for _, options in compiler.asked] == ["--gpu-architecture=sm_87"] * 2
    assert [options[-1] for _, options in compiler.asked] == ["-DHALF=0", "-DHALF=1"]


def test_the_next_start_takes_what_was_kept_and_another_gpu_does_not(tmp_path: Path) -> None:
    compiler, store = Compiler(), FileStore(tmp_path)
    for _ in range(3):
        kernels(compiler, store).kernel("decode", {"HALF": 0}, function="suppress")
    assert len(compiler.asked) == 1
    kernels(compiler, store, (9, 0)).kernel("decode", {"HALF": 0}, function="suppress")
    assert [options[0] for _, options in compiler.asked] == ["--gpu-architecture=sm_87", "--gpu-architecture=sm_90"]


def test_what_does_not_compile_tells_the_compilers_log_and_is_not_kept(tmp_path: Path) -> None:
    compiler, store = Compiler(fails=True), FileStore(tmp_path)
    broken = kernels(compiler, store)
    preprocessor = GpuPreprocessor(InputConfig(), target("nchw", "float32", 1, 16, 16), 256, broken)
    with pytest.raises(BuildError, match=r"the kernel preprocess\.cu does not compile") as caught:
        preprocessor.compile()
    assert caught.value.why == LOG
    compiler.fails = False
    preprocessor.compile()
    assert len(compiler.asked) == 2


def test_a_inference_says_so_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    broken = Kernels(rig.device, None, lambda: cast("Nvrtc", Compiler(fails=True)))
    for slot in rig.inference._slots:
        monkeypatch.setattr(slot.preprocessor, "kernels", broken)
    with pytest.raises(BuildError, match="does not compile"):
        rig.inference.warm_up()
    rig.close()


def test_a_store_that_cannot_be_written_is_told_and_the_kernel_runs(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def get(self, key: str) -> None:
            return None

        def put(self, key: str, content: bytes) -> None:
            raise ArtifactError("the disk is full")

    with caplog.at_level("WARNING", "edgert.backend"):
        made = kernels(Compiler(), Full()).kernel("decode", {"HALF": 0}, function="suppress")
    assert made.name == "suppress" and "the disk is full" in caplog.text
