"""A ROS 2 package around a pipeline: five files that colcon builds."""

import re
from pathlib import Path

from edgert.errors import ConfigError
from edgert.files import replace_text

_NAME = re.compile(r"[a-z](_?[a-z0-9])*")
_XML = """<?xml version="1.0"?>
<package format="3">
  <name>{name}</name>
  <version>0.1.0</version>
  <description>A pipeline of edgert</description>
  <maintainer email="you@example.com">you</maintainer>
  <license>Apache-2.0</license>
  <exec_depend>rclpy</exec_depend>
  <exec_depend>sensor_msgs</exec_depend>
  <exec_depend>vision_msgs</exec_depend>
  <exec_depend>diagnostic_msgs</exec_depend>
  <exec_depend>launch_ros</exec_depend>
  <export><build_type>ament_python</build_type></export>
</package>
"""
_SETUP = """from glob import glob

from setuptools import setup

# All files of config/ are installed, so a model may lie beside the pipeline file.
setup(
    name="{name}",
    version="0.1.0",
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/{name}"]),
        ("share/{name}", ["package.xml"]),
        ("share/{name}/launch", glob("launch/*")),
        ("share/{name}/config", glob("config/*")),
    ],
    entry_points={{"console_scripts": ["node = edgert.ros_node:main"]}},
    options={{
        "develop": {{"script_dir": "$base/lib/{name}"}},
        "install": {{"install_scripts": "$base/lib/{name}"}},
    }},
)
"""
_LAUNCH = """# ros2 launch {name} {name}.launch.py file:=/path/of/another.yaml
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description():
    file = get_package_share_directory("{name}") + "/config/{name}.yaml"
    parameters = [{{"file": LaunchConfiguration("file"), "use_sim_time": LaunchConfiguration("use_sim_time")}}]
    return LaunchDescription([
        DeclareLaunchArgument("file", default_value=file),
        DeclareLaunchArgument("use_sim_time", default_value="false"),
        Node(package="{name}", executable="node", name="{name}", parameters=parameters, output="screen"),
    ])
"""
_PIPELINE = """# ros2 launch {name} {name}.launch.py
# A model of yours: edgert new parts.onnx --source ros2:///camera/image_raw, then move both files here.
schema: 1
name: {name}
stages:
  camera: {{source: "ros2:///camera/image_raw"}}
  out: {{sink: ros2, from: camera, image: jpeg}}
"""


def write_package(name: str, folder: Path) -> list[Path]:
    """Write a package to ``folder/name`` and return the paths of its files.

    Raises ConfigError: ROS 2 does not allow the name, or the folder exists. Raises ArtifactError: a file cannot be
    written.
    """
    if not _NAME.fullmatch(name):
        why = "a name has lower-case letters, digits and single _, and begins with a letter"
        raise ConfigError(f"{name!r} cannot be the name of a package", why=why, fix="such as --ros2 dock_camera")
    made = folder / name
    if made.exists():
        raise ConfigError(f"{made} exists", fix="give another name, or remove it")
    texts = {
        "package.xml": _XML,
        "setup.py": _SETUP,
        f"resource/{name}": "",
        f"launch/{name}.launch.py": _LAUNCH,
        f"config/{name}.yaml": _PIPELINE,
    }
    for path, text in texts.items():
        replace_text(made / path, text.format(name=name))
    return [made / path for path in texts]
