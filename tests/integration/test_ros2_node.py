"""The lifecycle node by real rclpy, and the package that `edgert new --ros2` writes, by real colcon and launch."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from edgert.errors import ConfigError
from edgert.stages.ros2.ros_link import Quality
from edgert.wiring.ros_package import write_package
from tests.helpers.ros_partner import Partner, image, isolate, needs_rclpy, partner, repeated
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
TOPIC = "/camera/image_raw"
FILE = {
    "name": "dock",
    "stages": {
        "cam": {"source": f"ros2://{TOPIC}"},
        "look": {"python": "tests.integration.test_ros2_rclpy:look", "from": "cam"},
        "save": {"sink": "images", "from": "look", "path": "out", "every": 1000},
        "out": {"sink": "ros2", "from": "look"},
    },
}


@pytest.fixture
def ros() -> Iterator[Partner]:
    needs_rclpy()
    with partner() as made:
        yield made


def test_a_node_goes_through_its_states_and_has_live_keys_as_parameters(ros: Partner, tmp_path: Path) -> None:
    from lifecycle_msgs.msg import Transition
    from lifecycle_msgs.srv import ChangeState
    from rcl_interfaces.srv import ListParameters, SetParameters
    from rclpy.parameter import Parameter as Changed
    from sensor_msgs.msg import Image
    from vision_msgs.msg import Detection2DArray

    from edgert.ros_node import PipelineNode

    (tmp_path / "dock.yaml").write_text(yaml.safe_dump(FILE))
    publisher = ros.publisher(TOPIC, Image, Quality(False))
    ros.listen("/dock/cam/detections", Detection2DArray, Quality(True, depth=10))
    heard = ros.heard["/dock/cam/detections"]
    given = [Changed("stages.save.every", value=5), Changed("stages.gate.fps", value=2.5)]  # as of a launch file
    made = PipelineNode("dock_node", str(tmp_path / "dock.yaml"), context=ros.node.context, parameter_overrides=given)
    ros._executor.add_node(made.node)  # it composes: one executor spins both
    try:

        def called(kind: Any, name: str, request: Any) -> Any:
            client = ros.node.create_client(kind, f"/dock_node/{name}")
            wait_until(client.service_is_ready)
            future = client.call_async(request)
            wait_until(future.done)
            return future.result()

        def changed(number: int) -> bool:
            request = ChangeState.Request(transition=Transition(id=number))
            return bool(called(ChangeState, "change_state", request).success)

        def parameters() -> list[str]:
            return list(called(ListParameters, "list_parameters", ListParameters.Request()).result.names)

        def every(value: Any) -> Any:
            request = SetParameters.Request(parameters=[Changed("stages.save.every", value=value).to_parameter_msg()])
            return called(SetParameters, "set_parameters", request).results[0]

        assert changed(Transition.TRANSITION_CONFIGURE) and made.pipeline is not None
        assert "stages.save.every" in parameters()
        assert made.pipeline.control.show()["live"]["stages.save.every"] == 5
        with repeated(lambda number: publisher.publish(image(number))):
            assert changed(Transition.TRANSITION_ACTIVATE)
            wait_until(lambda: len(heard) > 3)
            assert every(7).successful and made.pipeline.control.show()["live"]["stages.save.every"] == 7
            for wrong in (-1, [1, 2], [b"a"], float("nan"), None):
                refused = every(wrong)
                assert not refused.successful and "every" in refused.reason
            both = [Changed("stages.save.every", value=9), Changed("stages.cam.fps", value=-5.0)]
            assert not made.node.set_parameters_atomically(both).successful  # neither of the two is set
            assert made.pipeline.control.show()["live"]["stages.save.every"] == 7
            made.pipeline.control.set("stages.save.every", 11)  # as by `edgert ctl set`
            wait_until(lambda: made.node.get_parameter("stages.save.every").value == 11)
            made.pipeline.control.add("gate", f"ros2://{TOPIC}/gate")
            wait_until(lambda: "stages.gate.fps" in parameters())
            assert made.node.get_parameter("stages.gate.fps").value != 2.5, "the camera came later, and runs without"
            made.pipeline.control.remove("gate")
            wait_until(lambda: "stages.gate.fps" not in parameters())
            assert changed(Transition.TRANSITION_DEACTIVATE)
            quiet = _settled(lambda: len(heard))
            assert changed(Transition.TRANSITION_ACTIVATE)
            wait_until(lambda: len(heard) > quiet + 3)
            assert changed(Transition.TRANSITION_DEACTIVATE) and changed(Transition.TRANSITION_CLEANUP)
        assert made.pipeline is None
        assert "stages.save.every" not in parameters()
        (tmp_path / "dock.yaml").write_text("stages: nothing")
        assert not changed(Transition.TRANSITION_CONFIGURE)  # and may be tried again
        (tmp_path / "dock.yaml").write_text(yaml.safe_dump(FILE))
        assert changed(Transition.TRANSITION_CONFIGURE)
    finally:
        ros._executor.remove_node(made.node)
        made.close()
    assert any(Path(os.environ["ROS_LOG_DIR"]).iterdir()), "not in the folder of the user"


def test_two_nodes_have_pipelines_of_two_names(
    ros: Partner, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from edgert.ros_node import PipelineNode

    (tmp_path / "dock.yaml").write_text(yaml.safe_dump(FILE))
    files = {"left": str(tmp_path / "dock.yaml"), "right": str(tmp_path / "dock.yaml"), "none": ""}
    left, *others = [PipelineNode(name, file, context=ros.node.context) for name, file in files.items()]
    for one in (left, *others):
        one.node.trigger_configure()
    said = capfd.readouterr().err
    assert "a pipeline named 'dock' runs already" in said and "-p file:=dock.yaml" in said
    for one in others:
        one.close()
    left.node.trigger_activate()
    left.node.destroy_node()  # too early, as a program may do it
    wait_until(lambda: "close the pipeline before its node is destroyed" in caplog.text)
    assert left.pipeline is not None
    left.pipeline.close()


def _settled(count: Callable[[], int]) -> int:
    """Return a count once it has not changed for half a second."""
    last, since = count(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.02)
        if count() != last:
            last, since = count(), time.monotonic()
    return last


def test_a_package_has_five_files_and_a_pipeline(tmp_path: Path) -> None:
    files = write_package("dock_camera", tmp_path)
    assert len(files) == 5 and all(path.is_file() for path in files)
    config = yaml.safe_load((tmp_path / "dock_camera/config/dock_camera.yaml").read_text())
    assert config["stages"]["out"]["sink"] == "ros2"
    with pytest.raises(ConfigError, match="exists"):
        write_package("dock_camera", tmp_path)
    for name in ("Dock", "2d", "a-b", "a__b", ""):
        with pytest.raises(ConfigError, match="cannot be the name of a package"):
            write_package(name, tmp_path)


def test_colcon_builds_the_package_and_its_node_runs(tmp_path: Path) -> None:
    colcon = shutil.which("colcon", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if colcon is None:
        pytest.skip("colcon is not installed: pip install -e '.[ros-test]'")
    write_package("dock_camera", tmp_path / "src")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = (colcon, "--log-base", "log", "build", "--base-paths", "src", "--event-handlers", "console_direct+")
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    made = tmp_path / "install/dock_camera"
    for file in (
        "share/dock_camera/package.xml",
        "share/dock_camera/launch/dock_camera.launch.py",
        "share/dock_camera/config/dock_camera.yaml",
        "share/ament_index/resource_index/packages/dock_camera",
        "lib/dock_camera/node",
    ):
        assert (made / file).exists(), file
    needs_rclpy()
    isolate(99)
    broken = tmp_path / "broken.yaml"
    broken.write_text("stages: nothing")
    node = (sys.executable, made / "lib/dock_camera/node", "--ros-args", "-p", f"file:={broken}")
    folders = [str(one) for one in made.glob("lib/python*/site-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(node, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "stages" in done.stderr


def test_the_launch_file_is_imported_by_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("launch", reason="launch of ROS 2 is not installed: it comes with a distribution")
    if "composition_interfaces" not in sys.modules:  # launch_ros imports it for nodes in containers, which are not used
        package, services = ModuleType("composition_interfaces"), ModuleType("composition_interfaces.srv")
        package.srv = services  # type: ignore[attr-defined]
        services.LoadNode = SimpleNamespace(Request=object)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "composition_interfaces", package)
        monkeypatch.setitem(sys.modules, "composition_interfaces.srv", services)
    from launch import LaunchContext
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    write_package("dock_camera", tmp_path)
    share = tmp_path / "share" / "ament_index" / "resource_index" / "packages"
    share.mkdir(parents=True)
    (share / "dock_camera").write_text("")
    (tmp_path / "share" / "dock_camera").mkdir()
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    file = tmp_path / "dock_camera/launch/dock_camera.launch.py"
    described = get_launch_description_from_python_launch_file(str(file))
    (node,) = (one for one in described.entities if type(one).__name__ == "Node")
    assert (node.node_package, node.node_executable) == ("dock_camera", "node")
    assert [one.name for one in described.get_launch_arguments()] == ["file", "use_sim_time"]
    assert LaunchContext() is not None
