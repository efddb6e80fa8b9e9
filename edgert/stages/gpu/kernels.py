"""Compilation and cache of this package's kernels: CUDA C in ``*.cu`` beside this file.

A line ``#include "name"`` is replaced by the file of that name in this folder, as the run-time compiler reads one text.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from edgert.backend.base import Store, cache_content
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice, Kernel, Module, Nvrtc, nvrtc

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_OPTIONS = ("--std=c++17", "--fmad=true", "--extra-device-vectorization")


class Kernels:
    """Cache of kernels compiled for the device, one per combination of definitions.

    Without a store, each start compiles, about a second per kernel. The compiler is by default the newest that suits
    the driver.
    """

    def __init__(
        self, device: CudaDevice, store: Store | None = None, compiler: Callable[[], Nvrtc] | None = None
    ) -> None:
        self.device, self._store = device, store
        self._compiler = compiler or (lambda: nvrtc(device.cuda_major))
        self._modules: dict[str, Module] = {}

    def why_not(self) -> str:
        """Return in one line why kernels cannot be compiled here, and what to install; empty if they can."""
        try:
            self._compiler()
        except DeviceError as error:
            return f"{error.what} ({error.fix})"
        return ""

    def kernel(self, name: str, definitions: Mapping[str, int], function: str = "") -> Kernel:
        """Return the kernel ``function``, by default ``name``, of ``name``.cu.

        Raises BuildError: the kernel does not compile; the log shows why. Raises DeviceError: there is no compiler, and
        the store does not have the kernel.
        """
        source = _source_text(f"{name}.cu")
        defines = (f"-D{definition}={value}" for definition, value in sorted(definitions.items()))
        options = (f"--gpu-architecture={self.device.architecture}", *_OPTIONS, *defines)
        key = hashlib.sha256("\0".join((source, *options)).encode()).hexdigest()[:32]
        if key not in self._modules:
            binary = self._store.get(key) if self._store else None
            if binary is None:
                binary = self._compiler().compile(source, f"{name}.cu", options)
                if self._store is not None:
                    cache_content(self._store, key, binary)
            self._modules[key] = self.device.load(binary)
        return self._modules[key].kernel(function or name)


def _source_text(name: str) -> str:
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: _source_text(line[1]), text)
