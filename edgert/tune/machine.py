"""What times depend on beside the model: a tactic holds for this machine, with these packages, and no other."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from edgert.backend.ort import OrtBackend
from edgert.board.cpu import cpu_name
from edgert.board.cuda import cuda_driver
from edgert.board.host import core_count


def identity() -> dict[str, str]:
    """Processor, cores, system, GPUs, and the versions of what runs models here. Raises DeviceError without ONNX
    Runtime."""
    return {
        "cpu": cpu_name(),
        "cores": str(core_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "onnxruntime": OrtBackend().version,
        "openvino": _version("openvino"),
        "tensorrt": _version("tensorrt"),
        "gpu": _gpus(),
    }


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """``"cores 8 → 2, openvino none → 2026.4.1"``; empty where nothing differs."""
    keys = [key for key in (*then, *(now.keys() - then.keys())) if then.get(key, "") != now.get(key, "")]
    return ", ".join(f"{key} {then.get(key) or 'none'} → {now.get(key) or 'none'}" for key in keys)


def _gpus() -> str:
    """``"Orin, CUDA 12.6"``; empty without one."""
    driver = cuda_driver()
    return ", ".join([*(gpu.name for gpu in driver.gpus), f"CUDA {driver.version}"]) if driver and driver.gpus else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
