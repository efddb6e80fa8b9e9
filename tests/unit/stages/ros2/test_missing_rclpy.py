"""What to source, or which Python to take, where rclpy is missing or of another Python."""

import sys
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert.errors import DeviceError, EdgertError
from edgert.stages.ros2 import rclpy_node

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = "3.8"
STAGES: list[dict[str, Any]] = [
    {"cam": {"source": "ros2:///camera/image_raw"}, "out": {"sink": "null", "from": "cam"}},
    {"cam": {"source": "synthetic:blank", "limit": 1}, "out": {"sink": "ros2", "from": "cam"}},
]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Python without rclpy, and an empty /opt/ros."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rclpy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not (Path(one) / "rclpy").exists()])
    monkeypatch.setattr(rclpy_node, "_INSTALLED", tmp_path / "ros")
    return tmp_path


def install(root: Path, distribution: str, python: str) -> None:
    (root / "ros" / distribution / "lib" / f"python{python}").mkdir(parents=True)
    (root / "ros" / distribution / "setup.bash").write_text("")


def refused(stages: dict[str, Any]) -> str:
    with pytest.raises(EdgertError) as caught:
        edgert.Pipeline({"stages": stages}).run()
    assert isinstance(caught.value, DeviceError)
    return str(caught.value)


@pytest.mark.parametrize("stages", STAGES, ids=["source", "sink"])
def test_what_to_source_is_named_and_zenoh_without_ros(without: Path, stages: dict[str, Any]) -> None:
    said = refused(stages)
    assert f"this Python {HERE} has no rclpy" in said and "ros2+zenoh://" in said
    install(without, "humble", OTHER)
    assert "here is ROS 2 humble, for another Python" in refused(stages)
    install(without, "jazzy", HERE)
    assert f"source {without}/ros/jazzy/setup.bash, then start it again" in refused(stages)


def have_rclpy(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, distribution: str) -> None:
    package = folder / "site" / "rclpy"
    package.mkdir(parents=True)
    for name in ("__init__.py", module):
        (package / name).write_text("")
    # syspath_prepend, undone after `without`, would leave its shorter path behind.
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    monkeypatch.setenv("ROS_DISTRO", distribution)


def test_rclpy_of_another_python_is_named(without: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_rclpy(without, monkeypatch, "_rclpy_pybind11.cpython-38-x86_64-linux-gnu.so", "foxy")
    said = refused(STAGES[0])
    assert f"rclpy of ROS 2 foxy was built for Python {OTHER}" in said and f"this is Python {HERE}" in said
    assert f"run edgert with python{OTHER}" in said


def test_missing_messages_name_their_package(without: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_rclpy(without, monkeypatch, "_rclpy_pybind11.py", "jazzy")
    for name in ("sensor_msgs", "vision_msgs", "sensor_msgs.msg", "vision_msgs.msg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "sudo apt install ros-jazzy-sensor-msgs" in refused(STAGES[0])
    assert "sudo apt install ros-jazzy-vision-msgs" in refused(STAGES[1])
