"""Engines with nothing around them: ONNX Runtime and TensorRT-RTX called by hand, each over a model of one fixed shape,
its work recorded as one CUDA graph. Their input lies on the GPU and stays as it is; nobody looks at their output while
they are timed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgert.backend.ort.runtime import ort_errors
from edgert.backend.tensorrt import library
from tests.bench.gpu_careful import Lines
from tests.bench.gpu_peer import INPUT
from tests.bench.gpu_race import IN_FLIGHT, InFlight
from tests.bench.gpu_task import Answer

WARM_RUNS = 3


class Bare(InFlight):
    """An engine alone, a run for each batch; ``lines`` prepare its input in FP16 and read its output."""

    def __init__(self, lines: Lines, frames: Sequence[Tensor], rows: int, model: Path) -> None:
        self._lines, self._frames, self.rows, self._turn = lines, frames, rows, 0
        self.image = self._prepared(0).contiguous()
        with torch.no_grad():
            out = lines.net(self._prepared(0))
        self.out = torch.empty_like(out, memory_format=torch.contiguous_format)
        self._done = [torch.cuda.Event() for _ in range(IN_FLIGHT)]
        self._stream, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.open(model, self._stream.cuda_stream)
        for _ in range(WARM_RUNS):  # kernels are chosen or compiled in the first
            self.enqueue()
        self._stream.synchronize()
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            self.enqueue()

    @abstractmethod
    def open(self, model: Path, stream: int) -> None: ...

    @abstractmethod
    def enqueue(self) -> None: ...

    def submit(self, index: int) -> Any:
        done = self._done[self._turn]
        self._turn = (self._turn + 1) % IN_FLIGHT
        with torch.cuda.stream(self._stream):
            self._graph.replay()
            done.record()
        return done

    def wait(self, ticket: Any) -> list[Answer]:
        ticket.synchronize()
        return []

    def answers(self, count: int) -> list[Answer]:
        """Each batch is brought into its input; the first is there again at the end."""
        found = []
        for index in (*range(0, count, self.rows), 0):
            self.image.copy_(self._prepared(index))
            self.out.zero_()
            torch.cuda.synchronize()
            self.wait(self.submit(index))
            with torch.no_grad():
                found += self._lines.answers(self._lines.packed(self.out).cpu().numpy())
        return found[:count]

    def _prepared(self, index: int) -> Tensor:
        frames = [self._frames[(index + row) % len(self._frames)] for row in range(self.rows)]
        with torch.no_grad():
            return self._lines.prepare(torch.stack(frames).cuda())

    def close(self) -> None:
        torch.cuda.synchronize()
        del self._graph


class BareRtx(Bare):
    def open(self, model: Path, stream: int) -> None:
        trt = library.load("tensorrt_rtx").trt
        self._logger = trt.Logger(trt.Logger.ERROR)
        plan = plan_of(trt, self._logger, model)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        self._context, self._handle = self._engine.create_execution_context(), stream
        self._context.set_tensor_address(INPUT, self.image.data_ptr())
        self._context.set_tensor_address("out", self.out.data_ptr())

    def enqueue(self) -> None:
        if not self._context.execute_async_v3(self._handle):
            raise RuntimeError("TensorRT-RTX failed while running")


class FedRtx(BareRtx):
    """TensorRT-RTX with the bytes of each batch brought to the GPU meanwhile, by one copy that nobody reads, or by one
    for each frame: as fast as frames of the host can come through this engine here, whatever is done with them."""

    def __init__(
        self, lines: Lines, frames: Sequence[Tensor], rows: int, model: Path, one_by_one: bool = False
    ) -> None:
        super().__init__(lines, frames, rows, model)
        batches = [torch.stack(list(frames[:rows])).pin_memory() for _ in range(IN_FLIGHT)]
        whole = [(torch.empty_like(batch, device="cuda"), batch) for batch in batches]
        self._copies = [[*zip(to, batch, strict=True)] if one_by_one else [(to, batch)] for to, batch in whole]
        self._bringing, self._there = torch.cuda.Stream(), torch.cuda.Event()
        torch.cuda.synchronize()

    def submit(self, index: int) -> Any:
        with torch.cuda.stream(self._bringing):
            for to, frames in self._copies[self._turn]:
                to.copy_(frames, non_blocking=True)
            self._there.record()
        self._stream.wait_event(self._there)
        return super().submit(index)


def plan_of(trt: Any, logger: Any, model: Path) -> Any:
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model.read_bytes()):
        raise RuntimeError(parser.get_error(0).desc())
    return builder.build_serialized_network(network, builder.create_builder_config())


def reopened(model: Path, contexts: int) -> Callable[[], None]:
    """Opens TensorRT-RTX over a model, with so many execution contexts, each run once and recorded as a CUDA graph, as
    a pipeline has them, and closes all of it. Kernels are compiled the first time, and found in a runtime cache later.
    """
    trt = library.load("tensorrt_rtx").trt
    logger, kernels = trt.Logger(trt.Logger.ERROR), list[bytes]()
    plan, stream, tensors = plan_of(trt, logger, model), torch.cuda.Stream(), dict[str, Tensor]()

    def once() -> None:
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        settings, held = engine.create_runtime_config(), list[Any]()
        cache = settings.create_runtime_cache()
        if kernels:
            cache.deserialize(kernels[0])
        settings.set_runtime_cache(cache)
        for _ in range(contexts):
            context, graph = engine.create_execution_context(settings), torch.cuda.CUDAGraph()
            for name in (engine.get_tensor_name(at) for at in range(engine.num_io_tensors)):
                if name not in tensors:  # of at most float32
                    tensors[name] = torch.zeros(tuple(engine.get_tensor_shape(name)), device="cuda")
                context.set_tensor_address(name, tensors[name].data_ptr())
            if not context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError("TensorRT-RTX failed while running")
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                context.execute_async_v3(stream.cuda_stream)
            graph.replay()
            held += [graph, context]
        torch.cuda.synchronize()
        if not kernels:
            kernels.append(bytes(memoryview(cache.serialize())))

    return once


class BareOrt(Bare):
    """ONNX Runtime's CUDA provider with its fastest kernels: channels last, bias and activation in the convolution."""

    def open(self, model: Path, stream: int) -> None:
        import onnxruntime as ort

        ort.set_default_logger_severity(3)
        ort.preload_dlls()
        self._settings = ort.RunOptions()
        self._settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        fastest = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
        for kernels in (fastest, {}):
            options = {"user_compute_stream": str(stream), **kernels}
            self._session = ort.InferenceSession(str(model), providers=[("CUDAExecutionProvider", options)])
            if "CUDAExecutionProvider" not in self._session.get_providers():
                raise RuntimeError("ONNX Runtime could not start its CUDA provider")
            self._binding = self._session.io_binding()
            for bind, name, tensor in (
                (self._binding.bind_input, INPUT, self.image),
                (self._binding.bind_output, "out", self.out),
            ):
                bind(name, "cuda", 0, np.float16, tuple(tensor.shape), tensor.data_ptr())
            try:
                self.enqueue()
                return
            except ort_errors():  # cuDNN has no such kernel for some layer
                if not kernels:
                    raise

    def enqueue(self) -> None:
        self._session.run_with_iobinding(self._binding, self._settings)
