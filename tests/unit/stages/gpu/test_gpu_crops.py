"""Crops of a frame for several models: each goes where it would go by itself, and one launch writes them all."""

from typing import Any

import numpy as np
import pytest

from edgert.config import CropConfig, InputConfig
from edgert.errors import StageError
from edgert.memory.cuda import CudaDevice
from edgert.runtime import Color, Crops
from edgert.stages.gpu import gpu_crops, gpu_preprocess, infer_gpu
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.infer import InferCrops
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.gpu import read, to_gpu
from tests.helpers.gpu_inference import Rig, shared
from tests.helpers.gpu_target import target

FORMATS = ("i420", "nv12", "yuyv", "bgr", "gray")
NETWORKS = ((32, 32), (48, 20), (17, 40))


def boxes_in(width: int, height: int, count: int, seed: int) -> Any:
    """(N, 4) int32, none empty, some a pixel wide and some beyond the frame."""
    random = np.random.default_rng(seed)
    corner = random.integers((-4, -4), (width - 3, height - 3), (count, 2))
    far = np.maximum(corner + random.integers(1, (width, height), (count, 2)), 1)
    return np.hstack([corner, far]).astype(np.int32)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "config",
    [
        InputConfig(),
        InputConfig(anchor="top_left", color="bgr"),
        InputConfig(resize="stretch", color="gray"),
        InputConfig(resize="center_crop", crop=0.875),
    ],
    ids=lambda config: config.resize + config.color,
)
def test_each_goes_where_it_would_go_by_itself(form: Any, config: InputConfig) -> None:
    kernels = kernels_or_skip()
    for seed, network in enumerate(NETWORKS):
        whole = to_gpu(kernels.device, frame_of(122, 90, form, color=Color("bt709", seed == 1), index=seed))
        for frame in (whole, whole.crop(20, 10, 112, 84)):
            boxes = boxes_in(frame.width, frame.height, 60, seed)
            layout, plans = (
                gpu_crops.crop_layout(frame, boxes, network, config),
                gpu_preprocess.PlanCache(network, config),
            )
            each = [plans.ready(frame.crop(*box)) for box in boxes.tolist()]
            assert layout.geometries == [one.plan.geometry for one in each]
            for row, (job, one) in enumerate(zip(layout.jobs, each, strict=True)):
                assert tuple(job["planes"].tolist()) == tuple(one.addresses)
                assert job.tobytes()[24:] == one.plan.struct(row)
            chroma = [address for one in each for address in one.addresses[1:]]
            assert layout.paired == (all(one.plan.is_even for one in each) and not any(at & 1 for at in chroma))
            assert layout.narrow == any(one.plan.is_narrow for one in each)


def test_a_crop_of_another_size_is_refused_where_none_is_resized() -> None:
    frame = to_gpu(kernels_or_skip().device, frame_of(64, 48, "nv12"))
    config = InputConfig(resize="none")
    assert len(gpu_crops.crop_layout(frame, np.int32([[0, 0, 32, 32], [8, 8, 40, 40]]), (32, 32), config).jobs) == 2
    with pytest.raises(StageError, match="32x30 does not fit a model input of 32x32"):
        gpu_crops.crop_layout(frame, np.int32([[0, 0, 32, 32], [8, 8, 40, 38]]), (32, 32), config)
    with pytest.raises(StageError, match="not on the GPU"):
        gpu_crops.crop_layout(frame_of(64, 48, "nv12"), np.int32([[0, 0, 32, 32]]), (32, 32), config)


def test_images_are_divided_among_launches_only_where_they_must() -> None:
    def jobs(count: int) -> Any:
        found = np.zeros(count, gpu_crops.JOB)
        found["row"] = np.arange(count)
        return found

    parts = [(bytes([name]) * gpu_preprocess.HEADER_BYTES, jobs(count)) for name, count in ((1, 3), (2, 0), (3, 4))]
    ((struct, count),) = gpu_crops.launch_arguments(parts, 8)
    assert count == 7 and len(struct) == 3 * gpu_preprocess.HEADER_BYTES + 8 * gpu_crops.JOB.itemsize
    assert struct[: 3 * gpu_preprocess.HEADER_BYTES] == b"".join(header for header, _ in parts)
    found = np.frombuffer(struct[3 * gpu_preprocess.HEADER_BYTES :], gpu_crops.JOB)["row"].tolist()
    assert found == [0, 1, 2, 2 << 16, 2 << 16 | 1, 2 << 16 | 2, 2 << 16 | 3, 0]
    assert [count for _, count in gpu_crops.launch_arguments(parts, 3)] == [3, 3, 1]
    assert len({len(struct) for struct, _ in gpu_crops.launch_arguments(parts, 3)}) == 1


def emptied(device: CudaDevice, block: Any) -> None:
    with device:
        device.driver.memcpy_htod(block.address, np.zeros(block.nbytes, np.uint8))
    device.synchronize()


@pytest.mark.parametrize("form", ["nv12", "bgr"])
def test_shared_launches_write_what_one_for_each_model_writes(kernels: Kernels, form: Any) -> None:
    device, stream = kernels.device, kernels.device.stream()
    frame = to_gpu(device, frame_of(122, 90, form))
    made = []
    for count, network, config in (
        (20, (32, 32), InputConfig(mean=(3.0,), std=(57.0,))),
        (20, (48, 20), InputConfig(resize="stretch", pad=7)),
        (0, (16, 16), InputConfig()),
        (7, (16, 40), InputConfig(anchor="top_left")),
    ):
        wanted = target("nchw", "float32", 20, *network)
        block = device.device_block(wanted.nbytes)
        emptied(device, block)
        into = gpu_preprocess.GpuPreprocessor(config, wanted, block.address, kernels)
        made.append((into, gpu_crops.crop_layout(frame, boxes_in(122, 90, count, count), network, config), block))
    launches = gpu_crops.CropWriter([into for into, _, _ in made], kernels)
    launches.compile()
    for launch in (together := launches.launches(form, [(into, layout) for into, layout, _ in made])):
        launch.enqueue(stream)
    stream.synchronize()
    assert len(together) == 2  # 47 images, of which one takes about 30
    found = [read(device, block.address, into.target.nbytes).copy() for into, _, block in made]
    for (into, layout, block), one in zip(made, found, strict=True):
        emptied(device, block)
        boxes = boxes_in(122, 90, len(layout.jobs), len(layout.jobs)).tolist()
        for launch in into.launches([into.plans.ready(frame.crop(*box)) for box in boxes]):
            launch.enqueue(stream)
        stream.synchronize()
        assert np.array_equal(read(device, block.address, into.target.nbytes), one)
        assert len(np.unique(one)) > 20 or not boxes
        block.release()


class Cascade:
    """Models that look at crops of the same frames, on one GPU that computes nothing."""

    def __init__(self, rows: int, count: int = 3) -> None:
        self.gpu = CudaDouble()
        self.rigs = [Rig(rows=rows, gpu=self.gpu, beside=False) for _ in range(count)]
        self.models = [
            gpu_crops.CropModel(f"look{n}", rig.inference, CropConfig(min_size=4)) for n, rig in enumerate(self.rigs)
        ]
        self.stage = gpu_crops.InferCropsOfModels(self.models)
        self.stage.open()

    def launched(self, work: Any) -> tuple[Any, int]:
        """What it returns, and how often it launched the kernel that prepares images."""
        before = len(self.gpu.launches)
        found = work()
        return found, [launch[0] for launch in self.gpu.launches[before:]].count("preprocess")

    def close(self) -> None:
        for rig in self.rigs:
            rig.close()


@pytest.mark.parametrize(("rows", "launches"), [(8, 1), (2, 3)])
def test_models_look_at_the_same_crops(rows: int, launches: int) -> None:
    cascade = Cascade(rows)
    boxes = [(x, 0, x + 8, 8) for x in range(0, 40, 8)]
    result = result_of(shared(cascade.rigs[0]), {"find": detections(*boxes)})
    found, count = cascade.launched(lambda: cascade.stage.process(result))
    assert count == launches
    for look in cascade.models:
        crops = found.outputs[look.name]
        assert isinstance(crops, Crops) and crops.rows.tolist() == [0, 1, 2, 3, 4] and crops.parent == "find"
        assert [geometry.bounds[0] for _, geometry in crops.records] == [0, 8, 16, 24, 32]
        one = InferCrops("alone", infer_gpu.PendingInference(look.inference), look.crop)
        alone = one.process(result).outputs["alone"]
        assert [way for _, way in alone.records] == [way for _, way in crops.records]
    result.frame.lease.release()
    assert not result.frame.lease.alive
    cascade.close()


def test_models_of_other_formats_take_launches_of_their_own_and_no_box_takes_none() -> None:
    cascade = Cascade(4)
    preprocessor = cascade.models[1].inference.preprocessor
    preprocessor.config = preprocessor.config.model_copy(update={"color": "bgr"})
    stage = gpu_crops.InferCropsOfModels(cascade.models, every=2)
    stage.open()
    frame = shared(cascade.rigs[0])
    result = result_of(frame, {"find": detections((0, 0, 20, 20), (4, 4, 30, 30))})
    assert cascade.launched(lambda: stage.process(result))[1] == 2
    nothing = result_of(frame, {"find": detections()})
    found, count = cascade.launched(lambda: stage.process(nothing))
    assert count == 0 and [len(found.outputs[look.name].records) for look in cascade.models] == [0, 0, 0]
    odd = shared(cascade.rigs[0], index=1)
    assert stage.process(result_of(odd, {"find": detections((0, 0, 20, 20))})).outputs.keys() == {"find"}
    for one in (frame, odd):
        one.lease.release()
    cascade.close()


def test_each_model_looks_at_the_boxes_that_it_wants() -> None:
    cascade = Cascade(8)
    one, two, three = cascade.models
    few = [one, two._replace(crop=CropConfig(min_size=4, limit=2)), three._replace(crop=CropConfig(min_size=16))]
    stage = gpu_crops.InferCropsOfModels(few)
    stage.open()
    result = result_of(shared(cascade.rigs[0]), {"find": detections((0, 0, 8, 8), (4, 4, 30, 30), (8, 8, 40, 40))})
    found, count = cascade.launched(lambda: stage.process(result))
    assert [found.outputs[look.name].rows.tolist() for look in few] == [[0, 1, 2], [0, 1], [1, 2]] and count == 1
    result.frame.lease.release()
    cascade.close()


def test_models_that_were_run_together_keep_their_records_apart() -> None:
    cascade = Cascade(8)
    one, two, three = cascade.models
    stage = gpu_crops.InferCropsOfModels([one]).combined_with([gpu_crops.InferCropsOfModels([two, three])])
    stage.open()
    result = result_of(shared(cascade.rigs[0]), {"find": detections((0, 0, 8, 8), (4, 4, 30, 30))})
    found, count = cascade.launched(lambda: stage.process(result))
    assert count == 1 and list(found.outputs) == ["find", "look0", "look1", "look2"]
    others = gpu_crops.AlreadyInferred("look1", frozenset({"look1", "look2"})).process(found)
    assert list(others.outputs) == ["find", "look0"] and others.frame is found.frame
    assert gpu_crops.AlreadyInferred("look2").process(found) is found
    result.frame.lease.release()
    cascade.close()


def test_what_fails_gives_its_frame_back() -> None:
    cascade = Cascade(4)
    frame = shared(cascade.rigs[0])
    cascade.gpu.launches.clear()
    for look in cascade.models:
        look.inference.preprocessor.config = InputConfig(resize="none")
    with pytest.raises(StageError, match="does not fit a model input"):
        cascade.stage.process(result_of(frame, {"find": detections((0, 0, 20, 20))}))
    frame.lease.release()
    assert not frame.lease.alive
    cascade.close()
