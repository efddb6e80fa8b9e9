"""``edgert run csi`` with the camera of a box, on this machine: real GStreamer, doubles of all that is NVIDIA's.

The same C and Python that is flashed into a box, compiled for this machine. No board was used.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import ROOT
from tools.box import identity, jetpack

gi = pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi")
_HEADERS = ["pkg-config", "--exists", "gstreamer-video-1.0"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("gcc")
        or not shutil.which("pkg-config")
        or bool(subprocess.run(_HEADERS, check=False).returncode),
        reason="no C compiler, or no headers of GStreamer: sudo apt install gcc libgstreamer-plugins-base1.0-dev",
    ),
]
_FRAMES = 12


@pytest.fixture(scope="module", params=identity.IDENTITIES)
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A board's name, and the environment in which its doubles are found."""
    folder, triplet = tmp_path_factory.mktemp(request.param), f"{platform.machine()}-linux-gnu"
    target = jetpack.Target("gcc", triplet)
    names = jetpack.trees(identity.IDENTITIES[request.param], folder, target)
    (folder / "argus").touch()
    here = Path(gi.__file__).parents[1]  # of the system's Python, which this one may not see
    python = [ROOT, *(folder / name / jetpack.PYTHON for name in names), here]
    return request.param, {
        **{name: text for name, text in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")},
        "PYTHONPATH": ":".join(map(str, python)),
        "LD_LIBRARY_PATH": ":".join(str(folder / name / target.libraries) for name in names),
        "GST_PLUGIN_PATH": str(folder / "nvidia-l4t-gstreamer" / target.libraries / jetpack.PLUGINS),
        "GST_REGISTRY": str(folder / "registry"),
        "EDGERT_BOX_SCENE": str(folder / "nvidia-l4t-gstreamer" / jetpack.SCENE),
        "EDGERT_BOX_ARGUS": str(folder / "argus"),
        "EDGERT_BOX_SENSORS": "1",
        "EDGERT_CACHE": str(folder / "cache"),
        "NVMM_COUNTS": "1",
        "COLUMNS": "200",
    }


def run(board: tuple[str, dict[str, str]], tmp_path: Path, *options: str, **variables: str) -> tuple[int, str]:
    """Exit code and all that was printed. No frame is dropped, however busy this machine is."""
    command = [sys.executable, "-m", "edgert", "run", "csi", "--plain", "--set", f"stages.camera.limit={_FRAMES}"]
    options = ("stages.camera.realtime=false", "stages.camera.reconnect=false", *options)
    sets = [word for option in options for word in ("--set", option)]
    done = subprocess.run(
        [*command, *sets],
        cwd=tmp_path,
        env={**board[1], **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def calls(printed: str, name: str) -> int:
    """Of the last process that ended: engines are compiled in others."""
    return int(printed.rpartition(f"\n{name}: ")[2].split()[0])


def test_frames_reach_the_model_without_a_copy(board: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    code, printed = run(board, tmp_path, "stages.camera.size=640x480")
    assert code == 0 and "0.00 host copies (0 B) per frame" in printed, printed
    mapped = calls(printed, "cuGraphicsEGLRegisterImage")
    assert mapped == calls(printed, "cuGraphicsUnregisterResource") == calls(printed, "NvBufSurfaceUnMapEglImage")
    way = "device address" if board[0] == "thor-t5000" else "EGL image"
    assert f"CUDA reads video memory in place, by {way}" in printed and bool(mapped) == (way == "EGL image")
    assert (calls(printed, "NvBufSurfaceMapCudaBuffer") == 1) == (board[0] == "agx-orin-64gb")
    seen = [json.loads(line) for line in (tmp_path / "out/csi.jsonl").read_text().splitlines()]
    assert len(seen) == _FRAMES
    assert all(len(one["outputs"]["find"]["objects"]) >= 5 for one in seen), "the conveyor's parts are found"


def test_a_turned_camera_is_another_size(board: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    code, printed = run(board, tmp_path, "stages.camera.size=640x480", "stages.camera.flip=90")
    assert code == 0, printed
    boxes = [
        one["box"]
        for line in (tmp_path / "out/csi.jsonl").read_text().splitlines()
        for one in json.loads(line)["outputs"]["find"]["objects"]
    ]
    assert boxes and max(box[2] for box in boxes) <= 480 < max(box[3] for box in boxes)


def test_without_the_daemon_or_the_sensor_the_error_names_it(board: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    code, printed = run(board, tmp_path, EDGERT_BOX_ARGUS="/nowhere")
    assert code == 1 and "Connecting to nvargus-daemon failed" in printed
    assert "error: CSI camera 0 gives no images" in printed and "its stream ended" in printed
    code, printed = run(board, tmp_path, "stages.camera.source=csi://1")
    assert code == 1 and "error: CSI camera 1 gives no images" in printed and "Invalid camera device" in printed


def test_what_fails_in_video_memory_keeps_its_own_error(board: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    if board[0] == "thor-t5000":
        pytest.skip("its video memory is CUDA's own: nothing is mapped")
    fails = {"NVMM_FAILS": "NvBufSurfaceMapEglImage:0", "DISPLAY": "localhost:10.0"}
    code, printed = run(board, tmp_path, "stages.camera.size=640x480", **fails)
    assert code == 1 and "an image in NVMM memory cannot be used by CUDA" in printed, printed
    assert "with DISPLAY=localhost:10.0" in printed and "unset DISPLAY" in printed


def test_tensorrt_has_the_names_of_its_version_and_refuses_others(board: tuple[str, dict[str, str]]) -> None:
    has = "hasattr(trt.BuilderFlag, 'FP4'), hasattr(trt, 'IInt8EntropyCalibrator2'), hasattr(trt, 'nonsense')"
    asked = f"import tensorrt as trt; print(trt.__version__, {has})"
    done = subprocess.run([sys.executable, "-c", asked], env=board[1], capture_output=True, text=True, check=True)
    is_old = board[0] == "orin-nx-16gb"  # FP4 came after 10.3, calibrators went with 11
    assert done.stdout.split() == ["10.3.0" if is_old else "10.13.3.9", str(not is_old), "True", "False"]
