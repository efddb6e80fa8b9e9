"""The CUDA driver, through a driver library made of Python."""

from typing import Any

from edgert.board.devices import GpuDevice, cuda_driver, query

NO_DEVICE, STUB = 100, 34


class Driver:
    """Behaves like libcuda with one Orin, or fails with ``code``."""

    def __init__(self, code: int = 0, knows_errors: bool = True) -> None:
        self.code, self.knows_errors = code, knows_errors

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = 12060
        return 0

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuDeviceGetCount(self, number: Any) -> int:
        number._obj.value = 1
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"Orin"
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        size._obj.value = 16 * 2**30
        return 0

    def cuDeviceGetAttribute(self, number: Any, which: int, device: Any) -> int:
        number._obj.value = {18: 1, 19: 1, 75: 8, 76: 7}[which]
        return 0

    def cuGetErrorName(self, code: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_STUB_LIBRARY" if self.knows_errors else None
        return 0 if self.knows_errors else 1


def test_a_gpu() -> None:
    found = query(Driver())
    assert (found.version, found.trouble) == ("12.6", "")
    assert found.gpus == (GpuDevice("Orin", "8.7", 16 * 2**30, integrated=True, can_map=True),)


def test_no_gpu_is_no_trouble() -> None:
    found = query(Driver(NO_DEVICE))
    assert (found.gpus, found.trouble) == ((), "")


def test_a_driver_that_fails_is_named() -> None:
    assert query(Driver(STUB)).trouble == "CUDA_ERROR_STUB_LIBRARY"
    assert query(Driver(STUB, knows_errors=False)).trouble == "CUDA error 34"


def test_no_driver() -> None:
    assert cuda_driver("libcuda-of-nowhere.so.1") is None
