"""vision_msgs for tests, built into this virtual environment: python -m tests.helpers.vision_msgs

It is made from edgert's definitions; a robot has it from apt packages. Needs cmake, ninja, a C++ compiler, and the
rosidl generators of PyPI in an environment with the extra `ros-test`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from edgert.recording.definitions import DEFINITIONS

_CMAKE = """cmake_minimum_required(VERSION 3.21)
project(vision_msgs)
find_package(ament_cmake REQUIRED)
find_package(std_msgs REQUIRED)
find_package(geometry_msgs REQUIRED)
find_package(rosidl_default_generators REQUIRED)
get_directory_property(known IMPORTED_TARGETS)
foreach(target ${known})  # paths of the machine that built the wheels
  get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
  if(folders)
    list(FILTER folders EXCLUDE REGEX "^/opt/python/")
    set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${folders}")
  endif()
endforeach()
rosidl_generate_interfaces(${PROJECT_NAME} FILES DEPENDENCIES std_msgs geometry_msgs)
ament_package()
"""
_XML = """<package format="3">
  <name>vision_msgs</name><version>4.1.1</version><description>Messages of tests</description>
  <maintainer email="nobody@example.com">nobody</maintainer><license>Apache-2.0</license>
  <buildtool_depend>ament_cmake</buildtool_depend><buildtool_depend>rosidl_default_generators</buildtool_depend>
  <depend>std_msgs</depend><depend>geometry_msgs</depend><exec_depend>rosidl_default_runtime</exec_depend>
  <member_of_group>rosidl_interface_packages</member_of_group>
</package>
"""


def build(prefix: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "msg").mkdir()
        files = list[str]()
        for name, text in DEFINITIONS.items():
            if name.startswith("vision_msgs/"):
                files.append(f"msg/{name.rpartition('/')[2]}.msg")
                (here / files[-1]).write_text(text + "\n")
        (here / "CMakeLists.txt").write_text(_CMAKE.replace("FILES", " ".join(files)))
        (here / "package.xml").write_text(_XML)
        path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "AMENT_PREFIX_PATH": str(prefix), "CMAKE_PREFIX_PATH": str(prefix), "PATH": path}
        defines = (f"-DCMAKE_INSTALL_PREFIX={prefix}", f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF")
        subprocess.run(
            ("cmake", "-G", "Ninja", "-S", ".", "-B", "build", *defines), cwd=here, env=environment, check=True
        )
        subprocess.run(("cmake", "--build", "build", "--target", "install"), cwd=here, env=environment, check=True)


if __name__ == "__main__":
    build(Path(sys.prefix))
