"""Frames stay on the GPU exactly where every stage that looks at them is there."""

import logging
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from edgert.assemble import pixels
from edgert.assemble.pixels import mark_pixel_use, put_on_gpu
from edgert.config import StageConfig
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice, SharedPool
from edgert.runtime import Task, branches, graph
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.stages import Does, Numbers

STAGES: TypeAdapter[dict[str, StageConfig]] = TypeAdapter(dict[str, StageConfig])
DEVICE = cast("CudaDevice", "the GPU")
FIND = {"infer": "parts", "from": "camera"}
SINK = {"sink": "jsonl", "from": "find", "path": "out.jsonl"}


class Source:
    def __init__(self, reason: str = "") -> None:
        self.reason, self.asked = reason, 0

    def on_gpu(self, device: CudaDevice) -> str:
        assert device is DEVICE
        self.asked += 1
        return self.reason


def put(
    source: object, decode: str | None = None, devices: Any = None, listened: Any = (), **more: Any
) -> dict[str, str]:
    camera = {"source": "clip.mp4"} | ({"decode": decode} if decode else {})
    stages = STAGES.validate_python({"camera": camera, "find": FIND, "out": SINK} | more)
    return put_on_gpu(stages, {"camera": source}, {"find": DEVICE} if devices is None else devices, listened)


def test_a_source_whose_readers_are_on_the_gpu_is_asked_and_told_about(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    with caplog.at_level(logging.INFO):
        put(source, tracks={"track": "bytetrack", "from": "find"}, quiet={"sink": "null", "from": "tracks"})
    assert source.asked == 1 and caplog.messages == ["camera: frames on the GPU"]


@pytest.mark.parametrize(
    "more",
    [
        {"paint": {"draw": "boxes", "from": "find"}},
        {"page": {"sink": "http", "from": "find"}},
        {"files": {"sink": "images", "from": "find", "path": "out"}},
        {"film": {"sink": "video", "from": "find", "path": "a.mp4"}},
        {"paint": {"draw": "boxes", "from": "find"}, "page": {"sink": "http", "from": "paint"}},
    ],
)
def test_what_draws_and_shows_takes_frames_on_the_gpu_as_they_are(more: dict[str, Any]) -> None:
    source = Source()
    assert put(source, "gpu", **more) == {"camera": "on the GPU"} and source.asked == 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"film": {"sink": "callback", "from": "find", "python": "mine:f"}},
            "'film' is a sink that takes images: callback",
        ),
        ({"own": {"python": "mine:f", "from": "find"}}, "your own code sees them at 'own'"),
        ({"slow": {"infer": "plates", "from": "camera"}}, "'slow' runs its model on the processor"),
        (
            {"own": {"python": "mine:f", "from": "find"}, "page": {"sink": "http", "from": "own"}},
            "your own code sees them at 'own'",
        ),
        (
            {"own": {"python": "mine:f", "from": "camera"}, "page": {"sink": "http", "from": "camera"}},
            "your own code sees them at 'own'",
        ),
    ],
)
def test_whoever_looks_at_pixels_on_the_host_gets_a_copy_and_is_named(
    more: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    with caplog.at_level(logging.INFO):
        reasons = put(source, "gpu", **more)
    assert source.asked == 1 and reasons == {"camera": f"on the GPU, and a copy on the host, since {reason}"}
    assert caplog.messages == [f"camera: frames {reasons['camera']}"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"own": {"python": "mine:f", "from": "camera"}, "find": FIND | {"from": "own"}}, "code sees them at 'own'"),
        ({"slow": {"infer": "plates", "from": "camera"}, "find": FIND | {"from": "slow"}}, "on the processor"),
    ],
)
def test_frames_that_a_model_on_the_gpu_gets_only_behind_the_host_stay_there(more: dict[str, Any], reason: str) -> None:
    source = Source()
    reasons = put(source, **more)
    assert not source.asked and reasons["camera"].startswith("on the host: before a model does, ")
    assert reasons["camera"].endswith(reason)
    with pytest.raises(DeviceError) as caught:
        put(source, "gpu", **more)
    assert reason in caught.value.why and caught.value.where == "stages.camera.decode"


def test_the_users_own_functions_get_a_copy() -> None:
    source = Source()
    reasons = put(source, listened={"find": print})
    assert source.asked and reasons["camera"].endswith(
        "a copy on the host, since your own code sees them behind 'find'"
    )


def test_what_the_source_cannot_is_told_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        put(Source("pixels are yuv422p"))
    assert caplog.messages == ["camera: frames on the host: pixels are yuv422p"]
    with pytest.raises(DeviceError, match="'camera' cannot be decoded on the GPU"):
        put(Source("pixels are yuv422p"), "gpu")


def test_decode_cpu_and_machines_without_a_gpu_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    with caplog.at_level(logging.INFO):
        put(source, devices={})
        assert not caplog.messages
        put(source, "cpu")
        put(object())
    reasons = ["decode: cpu", "its images are made on the host"]
    assert not source.asked and caplog.messages == [f"camera: frames on the host: {reason}" for reason in reasons]


class Sharing:
    def __init__(self) -> None:
        self.devices: list[object] = []
        self.live = False

    def share(self, device: CudaDevice) -> None:
        self.devices.append(device)


@pytest.mark.parametrize(
    ("integrated", "compute", "shares"), [(False, (9, 0), True), (True, (8, 7), True), (True, (5, 3), False)]
)
def test_frames_on_the_host_lie_where_the_gpu_reads_them_unless_that_makes_the_host_slow(
    integrated: bool, compute: tuple[int, int], shares: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source, device = Sharing(), CudaDevice(CudaDouble(integrated, compute), 0)
    with caplog.at_level(logging.INFO):
        put(source, devices={"find": device}, paint={"draw": "boxes", "from": "find"})
        put(source, "cpu", devices={"find": device})
        put(source, devices={})
    assert source.devices == [device, device] * shares
    place = "host, in memory that the GPU reads" if shares else "host"
    assert caplog.messages == [
        f"camera: frames on the {place}: {why}" for why in ("its images are made on the host", "decode: cpu")
    ]


@pytest.mark.parametrize(
    ("live", "integrated", "more", "kind"),
    [
        (True, False, {}, "mapped"),
        (True, False, {"show": {"sink": "null", "from": "find"}}, "mapped"),
        (True, False, {"own": {"python": "mine:f", "from": "camera"}}, "mapped"),  # it has its own, on the host
        (False, False, {}, "staged"),
        (True, False, {"plates": {"infer": "plates", "from": "camera"}}, "staged"),
        (True, False, {"plates": {"infer": "plates", "from": "find", "crop": {}}}, "staged"),
        (True, False, {"other": {"source": "usb:1"}}, "staged"),
        (True, True, {}, "mapped"),
    ],
)
def test_a_gpu_reads_the_frames_of_one_camera_where_the_host_wrote_them_if_it_does_so_once(
    live: bool, integrated: bool, more: dict[str, Any], kind: str
) -> None:
    source, device = Sharing(), CudaDevice(CudaDouble(integrated, (9, 0)), 0)
    source.live = live
    put(source, devices=dict.fromkeys(("find", "plates"), device), **more)
    pool = SharedPool(device, 64, 1)
    (piece,) = pool._pieces.values()
    assert device.frames == kind and piece.block.is_staged == (kind == "staged")


def test_a_jetsons_decoder_may_decode_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "jetson_missing", lambda: "")
    source = Source()
    put(source, decode="gpu", own={"python": "mine:f", "from": "camera"}, find=FIND | {"from": "own"})
    assert source.asked == 0, "its frames are the host's; whether its video is decoded by hardware it knows itself"


def test_of_the_branches_of_a_model_those_on_the_processor_get_copies() -> None:
    stages = [Does() for _ in range(4)]
    own = [branches.Branch((stages[0], stages[1]), reads="anywhere"), branches.Branch((stages[2], stages[3]))]
    source, end = Task("cam", Numbers()), Task("end", Does())
    source.execution.reads = end.execution.reads = "nothing"
    nodes = [source, *branches.branch_tasks("find", own, frozenset({"cam"}), 2), end]
    graph.connect(source, nodes[1], frozenset({"cam"}), 2, "never")
    graph.connect(nodes[-2], end, frozenset({"cam"}), 2, "never")
    mark_pixel_use(nodes)
    assert [node.name for node in nodes if node.execution.download is not None] == ["find:2"]
    assert [node.name for node in nodes if node.wiring.releases_pixels] == [
        "find:0",
        "find:1",
        "find:2",
        "find:3",
        "find",
    ]
