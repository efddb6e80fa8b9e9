"""TensorRT as a backend without TensorRT: the recording double, a GPU of NumPy arrays, builds in this process."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgert.backend.tensorrt.build_process import BuildResult
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.builder import compile_engine
from edgert.backend.tensorrt.library import library_of
from edgert.backend.tensorrt.trt_backend import Listener, TrtBackend
from edgert.board import HOST, Machine
from edgert.board.record import board
from edgert.errors import EdgertError
from tests.helpers.trt_device import FakeDevice
from tests.helpers.trt_double import Double, FakeTensor, Script

HERE = Machine(HOST, None, "", (), "", "", "x86", 2, 2, 2**33)
ORIN = replace(HERE, name="orin-nx-16gb", board=board("orin-nx-16gb"), l4t="36.4.3", jetpack="6.2", mode="15W")
FIXED = {"x": ((1, 3, 8, 8), "FLOAT", "INPUT"), "y": ((1, 4, 8, 8), "FLOAT", "OUTPUT")}


class Bench:
    """A backend that writes down what it builds; ``failures`` are raised by the next builds, one each."""

    def __init__(
        self,
        version: str = "10.3",
        *,
        machine: Machine = ORIN,
        root: Path = Path("/nowhere"),
        answer: Mapping[str, Any] | None = None,
        **script: Any,
    ) -> None:
        self.device = FakeDevice()
        ends = {"inputs": [FakeTensor("x")], "outputs": [FakeTensor("y")]}
        self.double = Double(version, Script(**{"bound": FIXED, **ends, **script}))
        self.requests: list[BuildRequest] = []
        self.reported: list[str] = []
        self.failures: list[EdgertError] = []
        self.answer = answer or {}
        self.backend = TrtBackend(
            machine=machine,
            root=root,
            library=library_of(self.double),
            device=lambda: self.device,
            build_once=self.build,
            listener=Listener(self.reported.append),
        )

    def build(self, request: BuildRequest, **_: object) -> BuildResult:
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        made = compile_engine(library_of(self.double), request, lambda record: None, lambda progress: True)
        return replace(made, **self.answer)
