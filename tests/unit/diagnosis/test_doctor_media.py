"""Probes of PyAV, OpenCV, GStreamer and cameras."""

from pathlib import Path

import pytest

from edgert import installation
from edgert.diagnosis import machine
from edgert.diagnosis.probe import Answer
from tests.unit.board.tree import jetson, write
from tests.unit.diagnosis.evidence import ABSENT, NO_GPU, evidence, without


def test_pyav_is_required(tmp_path: Path) -> None:
    found = machine.pyav(evidence(tmp_path))
    assert (found.state, found.detail) == ("yes", "14.0.0, FFmpeg 7.1 (libavcodec 61.19.100)")
    assert machine.pyav(evidence(tmp_path, av=ABSENT)).state == "no"
    assert machine.codecs(evidence(tmp_path, av=ABSENT)).fix == "see PyAV"


def test_codecs(tmp_path: Path) -> None:
    found = machine.codecs(evidence(tmp_path))
    assert found.state == "yes"
    assert found.detail == "reads h264, hevc, V4L2 cameras through OpenCV; writes libx264, mpeg4"


@pytest.mark.parametrize(
    ("facts", "missing"),
    [({"decoders": ["hevc"]}, "without h264"), ({"encoders": ["mpeg4"]}, "without an H.264 encoder")],
)
def test_an_ffmpeg_without_a_codec(tmp_path: Path, facts: dict[str, list[str]], missing: str) -> None:
    found = machine.codecs(evidence(tmp_path, av=without("av", **facts)))
    assert found.state == "optional" and missing in found.detail and "--only-binary av" in found.fix


def test_opencv(tmp_path: Path) -> None:
    found = machine.opencv(evidence(tmp_path))
    assert (found.state, found.detail) == ("yes", "4.10.0, without GStreamer inside")
    assert "with GStreamer" in machine.opencv(evidence(tmp_path, cv2=without("cv2", gstreamer=True))).detail
    broken = Answer({}, error="ImportError: libGL.so.1: cannot open shared object file")
    found = machine.opencv(evidence(tmp_path, cv2=broken))
    assert (found.state, found.fix) == ("no", "pip install opencv-python-headless") and "libGL" in found.detail


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


def test_gstreamer(tmp_path: Path) -> None:
    found = machine.gstreamer(evidence(jetson(tmp_path)))
    assert (found.state, found.fix) == ("yes", "") and "nvarguscamerasrc" in found.detail


def test_gstreamer_without_jetsons_elements(tmp_path: Path) -> None:
    plain = Answer({"version": "1.20.3", "elements": ["appsink", "v4l2src"]})
    assert machine.gstreamer(evidence(tmp_path, gi=plain)).state == "yes"
    found = machine.gstreamer(evidence(jetson(tmp_path), gi=plain))
    assert found.state == "optional" and "nvidia-l4t-gstreamer" in found.fix
    assert found.detail.endswith("; without nvarguscamerasrc and nvv4l2decoder")
    camera = Answer({"version": "1.20.3", "elements": ["appsink", "nvarguscamerasrc"]})
    assert machine.gstreamer(evidence(jetson(tmp_path), gi=camera)).detail.endswith("; without nvv4l2decoder")


def test_gstreamer_without_appsink(tmp_path: Path) -> None:
    found = machine.gstreamer(evidence(tmp_path, gi=Answer({"version": "1.20.3", "elements": []})))
    assert found.state == "optional" and "plugins-base" in found.fix


def test_gstreamer_missing_or_out_of_sight(tmp_path: Path) -> None:
    found = machine.gstreamer(evidence(tmp_path, gi=ABSENT))
    assert "python3-gi" in found.fix and "--system-site-packages" in found.fix
    write(tmp_path, "usr/lib/python3/dist-packages/gi/__init__.py", "")
    found = machine.gstreamer(evidence(tmp_path, gi=ABSENT))
    assert "does not see it" in found.detail and "--system-site-packages" in found.fix
    broken = Answer({}, error="ValueError: Namespace Gst not available")
    assert "gir1.2-gstreamer-1.0" in machine.gstreamer(evidence(tmp_path, gi=broken)).fix


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


def test_the_display_that_would_be_used_or_why_none(tmp_path: Path) -> None:
    found = machine.display(evidence(tmp_path))
    assert (found.state, found.detail) == ("yes", "windows on :0 by nv3dsink")
    other = without("display", viewer="ximagesink", refused={"nv3dsink": "no EGL"})
    assert machine.display(evidence(tmp_path, display=other)).detail.endswith("by ximagesink; not nv3dsink: no EGL")
    none = Answer({"viewer": "", "why": "DISPLAY is not set", "fix": "sink: http"})
    found = machine.display(evidence(tmp_path, display=none))
    assert (found.state, found.detail, found.fix) == ("optional", "none: DISPLAY is not set", "sink: http")
    found = machine.display(evidence(tmp_path, display=Answer({}, error="gave no answer in 30 s")))
    assert (found.state, found.detail) == ("optional", "none: gave no answer in 30 s")


def test_a_workstation_decodes_through_its_package(tmp_path: Path) -> None:
    found = machine.nvdec(evidence(tmp_path))
    by_gpu = "files and network streams whose frames stay on the GPU: PyNvVideoCodec 2.0.2"
    assert (found.state, found.detail) == ("yes", f"{by_gpu}; all others, and cameras: the CPU")
    found = machine.nvdec(evidence(tmp_path, nvdec=ABSENT))
    assert (found.state, found.fix) == ("optional", installation.command("nvdec")) and "by the CPU" in found.detail
    broken = Answer({}, error="ImportError: libnvidia-encode.so.1: cannot open shared object file")
    found = machine.nvdec(evidence(tmp_path, nvdec=broken))
    assert (
        found.state == "optional" and "NVIDIA_DRIVER_CAPABILITIES" in found.fix and "libnvidia-encode" in found.detail
    )


def test_without_a_gpu_nothing_is_missing(tmp_path: Path) -> None:
    found = machine.nvdec(evidence(tmp_path, nvdec=ABSENT, cuda=NO_GPU))
    assert (found.state, found.detail, found.fix) == ("optional", "not needed: no NVIDIA GPU here", "")


def test_a_jetson_decodes_through_gstreamer(tmp_path: Path) -> None:
    found = machine.nvdec(evidence(jetson(tmp_path), nvdec=ABSENT))
    by_jetson = "files and network streams, and USB cameras with MJPEG or H.264: nvv4l2decoder"
    assert (found.state, found.detail) == ("yes", by_jetson)
    assert machine.nvdec(evidence(jetson(tmp_path))).detail == by_jetson, "before JetPack 7 it is not the desktop's"
    partial = without("gi", elements=["appsink", "nvv4l2decoder", "nvvidconv"])
    found = machine.nvdec(evidence(jetson(tmp_path), nvdec=ABSENT, gi=partial))
    assert found.state == "optional" and "files and network streams: the CPU" in found.detail
    assert "h264parse" in found.detail and found.fix.endswith("gstreamer1.0-plugins-bad")
    found = machine.nvdec(evidence(jetson(tmp_path), nvdec=ABSENT, gi=ABSENT))
    assert (found.state, found.fix) == ("optional", "see GStreamer")


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
