"""TensorRT's engines and inference on the GPU: a recording TensorRT over a GPU that is this process's memory."""

import struct
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from edgert.assemble import assemble, gpu_models, models as model
from edgert.assemble.gpu_models import gpu_inference, is_on_gpu
from edgert.backend.tensorrt import library, log, trt_engine
from edgert.backend.tensorrt.sessions import Queue
from edgert.config import InputConfig, load_pipeline
from edgert.errors import DeviceError
from edgert.memory.cuda import Stream
from edgert.stages.crop import Geometry
from edgert.stages.decode.classify import Classify
from edgert.stages.gpu.infer_gpu import SLOTS, GpuInference
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.frames import frame_of
from tests.helpers.gpu_inference import no_kernels
from tests.helpers.small_pipeline import small_pipeline
from tests.helpers.trt_device import FakeDevice
from tests.helpers.trt_double import ANSWERS, SEVERITY, Double, Script

SIDE = 16
PLAIN = ((1, 3, SIDE, SIDE), "FLOAT", "INPUT")
OUTPUT = ((1, 2), "FLOAT", "OUTPUT")
FRAME_BYTES, OUTPUT_BYTES = 64 * 48 * 3 // 2, 8


class Rig:
    """An engine whose output counts its runs, and an inference slot over it."""

    def __init__(
        self,
        *,
        integrated: bool = False,
        loadables: int = 0,
        rows: int = 1,
        scales: dict[str, float] | None = None,
        queue: Queue | None = None,
        **script: Any,
    ) -> None:
        self.device, self.runs = FakeDevice(integrated), 0
        settings = {"bound": {"x": PLAIN, "y": OUTPUT}, "compute": self.compute, **script}
        core = {"dla_core": 0, "loadables": loadables, "scales": scales} if loadables else {}
        shapes = {"default": {"x": (rows, 3, SIDE, SIDE)}}
        self.double = Double("10.3", Script(**settings))
        self.engine: trt_engine.TrtEngine = trt_engine.TrtEngine(
            b"plan", library.library_of(self.double), self.device, queue=queue, profiles=shapes, **cast("Any", core)
        )
        assert is_on_gpu(self.engine)

    def compute(self, addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        self.runs += 1
        self.device.array(addresses["y"], "float32", (shapes["x"][0], 2))[...] = self.runs

    def inference(self, **wanted: bool) -> GpuInference | None:
        return gpu_inference(
            self.engine, None, InputConfig(resize="stretch"), lambda _: decoded, "parts.onnx", **wanted
        )

    def ready(self) -> GpuInference:
        inference = self.inference()
        assert inference is not None
        inference.warm_up()
        self.device.events.clear()
        return inference


def decoded(outputs: Sequence[Any], geometry: Geometry) -> float:
    return float(outputs[0][0])


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_models, "Kernels", no_kernels)


def test_a_frame_goes_up_and_results_come_down_and_nothing_else() -> None:
    rig = Rig()
    inference = rig.ready()
    before = rig.runs
    assert inference.run(inference.fill(frame_of(64, 48, "nv12"))) == [before + 1]
    copies = [event for event in rig.device.events if "load" in event]
    assert copies == [f"upload {FRAME_BYTES}", f"download {OUTPUT_BYTES}"]


def test_an_integrated_gpu_copies_nothing() -> None:
    rig = Rig(integrated=True)
    inference = rig.ready()
    inference.run(inference.fill(frame_of(64, 48, "nv12")))
    assert not [event for event in rig.device.events if "load" in event]


@pytest.mark.parametrize("value", ["", "mapped", "device"])
def test_of_an_integrated_gpu_only_what_the_host_touches_is_shared(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EDGERT_GPU_TENSORS", value)
    rig = Rig(integrated=True)
    rig.ready()
    sessions = rig.engine._sessions
    staged = [(one.inputs_on_gpu["x"].block.is_staged, one.outputs_on_gpu[0].block.is_staged) for one in sessions]
    found = {"": (True, False), "mapped": (False, False), "device": (True, True)}[value]  # its decoder is the host's
    assert staged == [found] * SLOTS


def test_of_an_integrated_gpu_an_output_that_is_decoded_there_is_its_own() -> None:
    rig = Rig(integrated=True)
    inference = gpu_inference(
        rig.engine, None, InputConfig(resize="stretch"), lambda _: Classify("softmax", 1), "parts.onnx"
    )
    assert inference is not None
    tensors = [one for session in rig.engine._sessions for one in (session.inputs_on_gpu["x"], *session.outputs_on_gpu)]
    assert len(tensors) == 2 * SLOTS and all(one.block.is_staged for one in tensors)
    rig.device.events.clear()
    inference.warm_up()
    assert not [event for event in rig.device.events if "load" in event]  # what it found is written to the host
    inference.close()


def test_the_host_can_run_a_session_whose_tensors_are_the_gpus_own() -> None:
    rig = Rig(integrated=True)
    session = rig.engine.session(on_host="none")
    session.inputs["x"][...] = 1
    assert session.run()[0].tolist() == [[1.0, 1.0]] and session.inputs["x"].min() == 1
    assert [event for event in rig.device.events if "load" in event] == ["upload 3072", "download 8"]
    shared = rig.engine.session()
    assert shared.run()[0].tolist() == [[2.0, 2.0]] and len(rig.device.events) == 4  # no copy: two waits more
    rig.engine.close()
    assert rig.device.live_bytes == 0 and not rig.device.gpu.allocations


def test_what_a_dla_takes_is_shared_whoever_touches_it() -> None:
    rig = Rig(integrated=True, loadables=1)
    for on_host in ("none", "outputs"):
        session = rig.engine.session(on_host=on_host)  # type: ignore[arg-type]
        tensors = (*session.inputs_on_gpu.values(), *session.outputs_on_gpu)
        assert not any(tensor.block.is_staged for tensor in tensors)


@pytest.mark.parametrize(("beside", "graphs"), [(True, 2), (False, 1)])
def test_work_is_recorded_once_and_is_one_graph_where_nothing_can_be_beside_it(beside: bool, graphs: int) -> None:
    rig = Rig()
    inference = rig.inference(beside=beside)
    assert inference is not None
    inference.warm_up()
    assert rig.device.events.count("capture") == graphs * SLOTS
    rig.device.events.clear()
    for _ in range(2 * SLOTS):
        inference.run(inference.fill(frame_of(64, 48, "nv12")))
    events = rig.device.events
    assert "capture" not in events and events.count("launch") == 2 * graphs * SLOTS


def test_a_recording_that_tensorrt_refuses_is_no_graph_and_its_reason_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig, reason = Rig(), "1: Error Code 1: Cuda Runtime (operation not permitted when stream is capturing)"
    execute = "IExecutionContext", "execute_async_v3"

    def refused(stream: Stream, enqueue: Any) -> None:
        log.shared_logger(rig.double)[0].log(SEVERITY.ERROR, reason)
        with monkeypatch.context() as recording:
            recording.setitem(ANSWERS, execute, lambda *_: False)
            enqueue()

    monkeypatch.setattr(rig.device, "capture", refused)
    inference = rig.ready()
    assert rig.engine.info["graph"] == f"no, because TensorRT failed while running ({reason})"
    assert [record.levelname for record in caplog.records if "no CUDA graph" in record.message] == ["WARNING"]
    before = rig.runs
    assert inference.run(inference.fill(frame_of(64, 48, "nv12"))) == [before + 1]


def test_each_number_of_rows_is_recorded_and_stays() -> None:
    bound = {"x": ((-1, 3, SIDE, SIDE), "FLOAT", "INPUT"), "y": ((-1, 2), "FLOAT", "OUTPUT")}
    rig = Rig(rows=4, bound=bound)
    inference = rig.inference()
    assert inference is not None
    inference.warm_up()
    assert rig.device.events.count("capture") == 3 * 2 * SLOTS
    contexts = [call for call in rig.double.calls if call.startswith("ICudaEngine.create_execution_context")]
    rig.device.events.clear()
    for rows in (4, 1, 2, 3):
        inference.run(*(inference.fill(frame_of(64, 48, "nv12"), row) for row in range(rows)))
    assert "capture" not in rig.device.events
    assert len(contexts) == 3 * SLOTS  # one for every size of every slot


def test_nothing_with_dla_layers_is_ever_recorded() -> None:
    rig = Rig(loadables=2)
    inference = rig.inference()
    assert inference is not None
    inference.warm_up()
    for _ in range(2 * SLOTS):
        inference.run(inference.fill(frame_of(64, 48, "nv12")))
    assert not {"capture", "launch"} & set(rig.device.events)


def test_a_run_that_cannot_be_recorded_is_done_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.setattr(FakeDevice, "capture", capture)
    rig = Rig()
    inference = rig.ready()
    assert inference.run(inference.fill(frame_of(64, 48, "nv12"))) == [rig.runs]


@pytest.mark.parametrize(
    ("dtype", "strides", "vector", "wanted"),
    [
        ("HALF", (16 * 16, 16 * 16, 16, 1), 4, (1024, 1, 64, 4)),  # DLA_HWC4, told in vectors
        ("HALF", (16 * 64, 1, 64, 4), -1, (1024, 1, 64, 4)),  # the same, told in numbers
        ("HALF", (16 * 16, 16 * 16, 16, 1), 16, (4096, 1, 256, 16)),  # CHW16
        ("INT8", (16 * 16, 16 * 16, 16, 1), 32, (8192, 1, 512, 32)),  # CHW32
        ("HALF", (3 * 16 * 32, 16 * 32, 32, 1), -1, (1536, 512, 32, 1)),  # DLA_LINEAR: rows of 64 bytes
    ],
)
def test_the_layouts_of_a_dla_are_written_by_the_kernel(
    dtype: str, strides: tuple[int, ...], vector: int, wanted: tuple[int, ...]
) -> None:
    bound = {"x": ((1, 3, SIDE, SIDE), dtype, "INPUT"), "y": OUTPUT}
    rig = Rig(loadables=1, bound=bound, strides={"x": strides}, vectors={"x": (1 if vector > 1 else -1, vector)})
    inference = rig.ready()
    inference.run(inference.fill(frame_of(64, 48, "nv12")))
    argument = rig.device.gpu.launches[-1][4]
    address, *settings = struct.unpack_from("=Qq3i", argument)
    assert tuple(settings) == wanted
    assert address in {int(one) for one in rig.device.gpu.allocations}


def test_images_are_written_in_the_steps_of_an_int8_input() -> None:
    bound = {"x": ((1, 3, SIDE, SIDE), "INT8", "INPUT"), "y": OUTPUT}
    rig = Rig(loadables=1, scales={"x": 0.5}, bound=bound, strides={"x": (1024, 1, 64, 4)})
    inference = rig.ready()
    inference.run(inference.fill(frame_of(64, 48, "nv12")))
    numbers = struct.unpack_from("=Qq6i6f", rig.device.gpu.launches[-1][4])[8:]
    assert numbers == (2.0, 2.0, 2.0, 0.0, 0.0, 0.0)  # levels, (level - 0) / (1 * 0.5)


def test_outputs_in_a_layout_of_a_dla_are_read_by_the_host(caplog: pytest.LogCaptureFixture) -> None:
    bound = {"x": PLAIN, "y": ((1, 3, 2, 2), "HALF", "OUTPUT")}
    rig = Rig(loadables=1, bound=bound, strides={"y": (4, 4, 2, 1)}, vectors={"y": (1, 16)})
    assert rig.inference() is None
    assert "parts.onnx: images are prepared on the host: output 'y' is in a DLA's layout" in caplog.text


def test_without_a_compiler_for_kernels_the_host_prepares_images(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise DeviceError("there is no CUDA run-time compiler", fix="sudo apt install nvidia-jetpack")

    monkeypatch.setattr(gpu_models, "Kernels", partial(Kernels, compiler=cast("Any", missing)))
    rig = Rig()
    assert rig.inference() is None and "no CUDA run-time compiler (sudo apt install nvidia-jetpack)" in caplog.text


def test_what_is_urgent_goes_first_from_the_frame_to_its_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, first = Rig(), list[Any]()
    monkeypatch.setattr(Stream, "raise_priority", lambda stream: first.append(stream))
    rig.inference()
    assert first == []
    rig.inference(is_urgent=True)
    assert first[0] is rig.engine.session().stream and len(set(first)) == 3
    assert "capture" not in rig.device.events  # what is recorded later has that priority
    rig.inference(is_urgent=True, beside=False)
    assert first[3:] == first[:1]


def test_several_batches_may_be_worked_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = list[Any]()
    monkeypatch.setattr(Stream, "raise_priority", lambda stream: first.append(stream))
    rig = Rig()
    inference = rig.inference(side_by_side=True, is_urgent=True)
    assert inference is not None
    streams = [one.stream for one in rig.engine._sessions]
    assert len(set(map(id, streams))) == SLOTS and first[:SLOTS] == streams, "all of them go first"
    inference.warm_up()
    assert rig.device.events.count("capture") == SLOTS, "each is decoded where its engine ran"
    before = rig.runs
    pending = [inference.submit_batch((inference.fill(frame_of(64, 48, "nv12")),)) for _ in range(2 * SLOTS)]
    assert [one.records()[0] for one in pending] == [before + 1 + turn for turn in range(2 * SLOTS)]
    assert inference.idle
    inference.close()
    rig.engine.close()
    assert rig.device.live_bytes == 0 and not rig.device.gpu.allocations


def test_no_more_than_one_where_that_is_later_and_on_a_dla() -> None:
    rig = Rig()
    assert rig.inference() is not None
    assert len({id(one.stream) for one in rig.engine._sessions}) == 1
    rig = Rig(loadables=1, queue=Queue(rig.device.stream(), threading.RLock()))
    assert len({id(rig.engine.session(queue_index=index).stream) for index in range(SLOTS)}) == 1


def test_a_driver_that_knows_no_priorities_is_told_and_the_model_runs(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level("WARNING", "edgert.gpu"):
        inference = rig.inference(is_urgent=True)
    assert "parts.onnx: priority: high is not used: there is no CUDA driver (libcuda.so.1" in caplog.text
    assert inference is not None
    assert inference.run(inference.fill(frame_of(64, 48, "nv12"))) == [1.0]


def asked_of_the_gpu(key: str, changes: str, folder: Path, patch: pytest.MonkeyPatch) -> bool:
    """What :func:`gpu_inference` is asked for, for a pipeline of images."""
    found: list[bool] = []
    patch.setattr(model, "is_on_gpu", lambda engine: True)
    patch.setattr(model, "gpu_inference", lambda *_, **asked: found.append(asked[key]))  # then the host's is used
    assemble(load_pipeline(small_pipeline(folder), changes.split())).close()
    return found[0]


@pytest.mark.parametrize(("changes", "is_urgent"), [("", False), ("models.parts.priority=high", True)])
def test_the_priority_of_a_models_section_reaches_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: str, is_urgent: bool
) -> None:
    assert asked_of_the_gpu("is_urgent", changes, tmp_path, monkeypatch) is is_urgent


@pytest.mark.parametrize(
    ("changes", "is_so"), [("", True), ("stages.cam.source=photos stages.cam.realtime=true stages.cam.fps=9", False)]
)
def test_what_comes_as_fast_as_it_is_taken_is_worked_on_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: str, is_so: bool
) -> None:
    assert asked_of_the_gpu("side_by_side", changes, tmp_path, monkeypatch) is is_so
