"""Probes of PyAV, OpenCV, GStreamer and cameras."""

import re
from pathlib import Path

import pytest

from edgert import installation
from edgert.diagnosis import machine
from edgert.diagnosis.probe import Answer
from tests.unit.board.tree import jetson, write
from tests.unit.diagnosis.evidence import ABSENT, NO_GPU, check, evidence, without


def gst(*elements: str) -> Answer:
    return Answer({"version": "1.20.3", "elements": list(elements)})


NO_LIBGL = Answer({}, error="ImportError: libGL.so.1: cannot open shared object file")
NO_ENCODE = Answer({}, error="ImportError: libnvidia-encode.so.1: cannot open shared object file")
NO_GST = Answer({}, error="ValueError: Namespace Gst not available")
NO_DISPLAY = Answer({"viewer": "", "why": "DISPLAY is not set", "fix": "sink: http"})
NO_SINK = without("display", viewer="ximagesink", refused={"nv3dsink": "no EGL"})
BY_JETSON = "files and network streams, and USB cameras with MJPEG or H.264: nvv4l2decoder$"


@pytest.mark.parametrize(
    ("probe", "answers", "state", "detail", "fix"),
    [
        ("pyav", {}, "yes", "14.0.0, FFmpeg 7.1 .libavcodec 61.19.100.$", ""),
        ("pyav", {"av": ABSENT}, "no", "", None),
        ("codecs", {}, "yes", "reads h264, hevc, V4L2 cameras through OpenCV; writes libx264, mpeg4$", ""),
        ("codecs", {"av": ABSENT}, "optional", "", "see PyAV"),
        ("codecs", {"av": without("av", decoders=["hevc"])}, "optional", ".*without h264", ".*--only-binary av"),
        ("codecs", {"av": without("av", encoders=["mpeg4"])}, "optional", ".*without an H.264 enc", ".*--only-binary"),
        ("opencv", {}, "yes", "4.10.0, without GStreamer inside$", ""),
        ("opencv", {"cv2": without("cv2", gstreamer=True)}, "yes", ".*with GStreamer", ""),
        ("opencv", {"cv2": NO_LIBGL}, "no", ".*libGL", "pip install opencv-python-headless$"),
        ("gstreamer", {"gi": gst("appsink", "v4l2src")}, "yes", "", ""),
        ("gstreamer", {"gi": gst()}, "optional", "", ".*plugins-base"),
        ("gstreamer", {"gi": NO_GST}, "optional", "", ".*gir1.2-gstreamer-1.0"),
        ("display", {}, "yes", "windows on :0 by nv3dsink$", ""),
        ("display", {"display": NO_SINK}, "yes", ".*by ximagesink; not nv3dsink: no EGL$", ""),
        ("display", {"display": NO_DISPLAY}, "optional", "none: DISPLAY is not set$", "sink: http$"),
        ("display", {"display": Answer({}, error="gave no answer in 30 s")}, "optional", "none: gave no answer", None),
        ("nvdec", {}, "yes",
         "files and network streams whose frames stay on the GPU: PyNvVideoCodec 2.0.2; all others, and cameras: the "
         "CPU$", ""),
        ("nvdec", {"nvdec": ABSENT}, "optional", ".*by the CPU", re.escape(installation.command("nvdec"))),
        ("nvdec", {"nvdec": NO_ENCODE}, "optional", ".*libnvidia-encode", ".*NVIDIA_DRIVER_CAPABILITIES"),
        ("nvdec", {"nvdec": ABSENT, "cuda": NO_GPU}, "optional", "not needed: no NVIDIA GPU here$", ""),
    ],
)  # fmt: skip
def test_a_workstation(
    tmp_path: Path, probe: str, answers: dict[str, Answer], state: str, detail: str, fix: str | None
) -> None:
    check(getattr(machine, probe)(evidence(tmp_path, **answers)), state, detail, fix)


@pytest.mark.parametrize(
    ("probe", "answers", "state", "detail", "fix"),
    [
        ("gstreamer", {}, "yes", ".*nvarguscamerasrc", ""),
        ("gstreamer", {"gi": gst("appsink", "v4l2src")}, "optional",
         ".*; without nvarguscamerasrc and nvv4l2decoder$", ".*nvidia-l4t-gstreamer"),
        ("gstreamer", {"gi": gst("appsink", "nvarguscamerasrc")}, "optional", ".*; without nvv4l2decoder$", None),
        ("nvdec", {}, "yes", BY_JETSON, ""),  # before JetPack 7 it is not the desktop's
        ("nvdec", {"nvdec": ABSENT}, "yes", BY_JETSON, ""),
        ("nvdec", {"nvdec": ABSENT, "gi": gst("appsink", "nvv4l2decoder", "nvvidconv")}, "optional",
         "(?=.*files and network streams: the CPU).*h264parse", ".*gstreamer1.0-plugins-bad$"),
        ("nvdec", {"nvdec": ABSENT, "gi": ABSENT}, "optional", "", "see GStreamer"),
    ],
)  # fmt: skip
def test_a_jetson(
    tmp_path: Path, probe: str, answers: dict[str, Answer], state: str, detail: str, fix: str | None
) -> None:
    check(getattr(machine, probe)(evidence(jetson(tmp_path), **answers)), state, detail, fix)


def test_a_wheel_in_front_of_the_systems_opencv(tmp_path: Path) -> None:
    write(tmp_path, "usr/lib/python3.10/dist-packages/cv2/__init__.py", "")
    assert "hides the system's own cv2" in machine.opencv(evidence(tmp_path)).detail
    own = without("cv2", file="/usr/lib/python3.10/dist-packages/cv2/__init__.py")
    assert "hides" not in machine.opencv(evidence(tmp_path, cv2=own)).detail


@pytest.mark.parametrize(
    ("names", "state"),
    [
        ({"opencv-python", "opencv-python-headless", "numpy"}, "optional"),
        ({"opencv-python-headless", "numpy"}, "yes"),
        ({"numpy"}, "yes"),
    ],
)
def test_opencv_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: set[str], state: str) -> None:
    monkeypatch.setattr(machine, "_installed_packages", lambda: names)
    found = machine.opencv_wheels(evidence(tmp_path))
    assert found.state == state and bool(found.fix) == (state == "optional")


def test_installed_packages_are_found() -> None:
    assert {"numpy", "pytest"} <= machine._installed_packages()


def test_gstreamer_missing_or_out_of_sight(tmp_path: Path) -> None:
    found = machine.gstreamer(evidence(tmp_path, gi=ABSENT))
    assert "python3-gi" in found.fix and "--system-site-packages" in found.fix
    write(tmp_path, "usr/lib/python3/dist-packages/gi/__init__.py", "")
    found = machine.gstreamer(evidence(tmp_path, gi=ABSENT))
    assert "does not see it" in found.detail and "--system-site-packages" in found.fix


def test_cameras(tmp_path: Path) -> None:
    assert machine.camera_devices(evidence(tmp_path)).state == "optional"
    write(tmp_path, "dev/video0", "")
    write(tmp_path, "sys/class/video4linux/video0/name", "HD Webcam\n")
    found = machine.camera_devices(evidence(tmp_path))
    assert (found.state, found.detail) == ("yes", "/dev/video0 HD Webcam")


def test_csi_sensors_and_the_way_to_them(tmp_path: Path) -> None:
    root = jetson(tmp_path)
    write(root, "dev/video0", "")
    write(root, "sys/class/video4linux/video0/name", "vi-output, imx219 9-0010\n")
    found = machine.camera_devices(evidence(root))
    assert found.state == "optional" and "csi://0 at /dev/video0 vi-output, imx219 9-0010" in found.detail
    assert "no /tmp/argus_socket" in found.detail and "docker run -v /tmp:/tmp " in found.fix
    write(root, "tmp/argus_socket", "")
    assert machine.camera_devices(evidence(root)).state == "yes"


def thor(root: Path) -> Path:
    release = "# R38 (release), REVISION: 4.0, GCID: 43443517"
    return jetson(root, ("nvidia,p4071-0000+p3834-0008", "nvidia,tegra264"), 125_772, release)


def test_a_thor_has_neither_argus_nor_hardware_for_mjpeg(tmp_path: Path) -> None:
    root = thor(tmp_path)
    found = machine.camera_devices(evidence(root))
    assert found.state == "optional" and "none seen; csi://: Jetson Linux 38.4.0 has no Argus" in found.detail
    assert "nvargus" not in found.fix and "jetson-io" not in found.fix and "USB or network camera" in found.fix
    write(root, "dev/video0", "")
    assert machine.camera_devices(evidence(root)).state == "yes"
    found = machine.nvdec(evidence(root, nvdec=ABSENT))
    assert "USB cameras with format: h264: nvv4l2decoder" in found.detail and "does not support MJPEG" in found.detail
    found = machine.nvenc(evidence(root, nvdec=ABSENT))
    assert found.state == "optional" and "PyNvVideoCodec" in found.detail and found.fix == installation.command("nvdec")
    elements = without("gi", elements=["appsink", "nvv4l2decoder", "nvvidconv", "h264parse"])
    assert machine.gstreamer(evidence(root, gi=elements)).state == "yes"


def test_a_container_may_have_a_csi_camera_without_a_device(tmp_path: Path) -> None:
    root = jetson(tmp_path)
    write(root, "tmp/argus_socket", "")
    found = machine.camera_devices(evidence(root))
    assert found.state == "optional" and "csi://0 may work" in found.detail


def test_a_camera_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "dev/video0", "")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = machine.camera_devices(evidence(tmp_path))
    assert found.state == "optional" and "usermod -aG video" in found.fix


@pytest.mark.parametrize(
    ("board", "answers", "state", "detail"),
    [
        ("", {}, "yes", "video is encoded by PyNvVideoCodec 2.0.2"),
        ("", {"nvdec": ABSENT, "cuda": NO_GPU}, "optional", "not needed: no NVIDIA GPU here"),
        ("", {"nvdec": ABSENT}, "optional", "by the CPU, or by FFmpeg's NVENC: PyNvVideoCodec is not installed"),
        ("", {"nvdec": without("nvdec", no_nvenc="this GPU has no NVENC")}, "optional", "CPU: this GPU has no NVENC"),
        ("orin-nx-16gb", {}, "yes", "video is encoded by nvv4l2h264enc"),
        ("orin-nx-16gb", {"gi": ABSENT}, "optional", "by the CPU: GStreamer lacks nvv4l2h264enc, nvvidconv"),
        ("orin-nano-8gb", {}, "optional", "by the CPU: a Jetson Orin Nano 8GB has no encoder"),
    ],
)
def test_who_encodes_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: str, answers: dict[str, Answer], state: str, detail: str
) -> None:
    if board:
        jetson(tmp_path)
        monkeypatch.setenv("EDGERT_BOARD", board)
    found = machine.nvenc(evidence(tmp_path, **answers))
    assert found.state == state and found.detail.endswith(detail), found
