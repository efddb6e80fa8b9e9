"""Lifecycle node of ROS 2 that runs a pipeline: ``python -m edgert.ros_node --ros-args -p file:=dock.yaml``."""

import json
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from edgert.config import PipelineFile
from edgert.errors import ConfigError, EdgertError
from edgert.pipeline import Pipeline
from edgert.stages.ros2.rclpy_node import import_rclpy, release_node, use_node

_LOOK_S = 0.25
_PLAIN = (bool, int, float, str)


class PipelineNode:
    """Lifecycle node that runs a pipeline. Add its ``node`` to an executor, alone or with others.

    ===========  ====================================================================
    configure    loads the pipeline of the parameter ``file``, and its models
    activate     starts the pipeline, or resumes its sources
    deactivate   pauses its sources; models stay loaded
    cleanup      closes the pipeline
    ===========  ====================================================================

    The pipeline's topics belong to this node. While it is configured, every live key of the pipeline
    (:attr:`edgert.Pipeline.control`) is a parameter, such as ``stages.find.every``; refusing a value gives the reason.
    A change by another program, such as ``edgert ctl``, is in the parameters within a quarter of a second.
    When the pipeline ends, the node logs an error, if any, and becomes unconfigured again.

    Args:
        file: pipeline file; the parameter ``file`` overrides it.
        options: options of :class:`rclpy.lifecycle.LifecycleNode`, such as ``context``.

    Raises:
        DeviceError: rclpy is missing, or built for another Python.
    """

    def __init__(self, name: str = "edgert", file: str = "", **options: Any) -> None:
        import_rclpy("")
        lifecycle = import_module("rclpy.lifecycle")
        returns = lifecycle.TransitionCallbackReturn
        self._success, self._failure = returns.SUCCESS, returns.FAILURE
        self.pipeline: Pipeline | None = None
        self._is_showing, self._is_active, self._live = False, False, set[str]()
        self._shown_file: PipelineFile | None = None
        self.node = lifecycle.LifecycleNode(name, **options)
        self.node.declare_parameter("file", file)
        managed = lifecycle.ManagedEntity()
        for change in ("configure", "activate", "deactivate", "cleanup", "shutdown", "error"):
            setattr(managed, f"on_{change}", getattr(self, f"on_{change}"))
        self.node.add_managed_entity(managed)
        self.node.add_on_set_parameters_callback(self._set_parameters)
        self.node.create_timer(_LOOK_S, self._look)

    def on_configure(self, _: object) -> Any:
        """Load the pipeline."""
        file = self.node.get_parameter("file").value
        try:
            if not file:
                raise ConfigError("the parameter file names no pipeline", fix="--ros-args -p file:=dock.yaml")
            self.pipeline = Pipeline(file)
            use_node(self.pipeline.file.config.name, self.node)
            if given := self._show_live_keys(self.pipeline):
                self.pipeline.control.set_keys(given)
        except EdgertError as error:
            self._close()
            return self._log_failure(error)
        return self._success

    def on_activate(self, _: object) -> Any:
        """Start the pipeline, or resume its sources."""
        assert self.pipeline is not None
        try:
            if self.pipeline.running:
                for source in self._sources():
                    self.pipeline.control.resume(source)
            else:
                self.pipeline.start()
        except EdgertError as error:
            return self._log_failure(error)
        self._is_active = True
        return self._success

    def on_deactivate(self, _: object) -> Any:
        """Pause the sources."""
        self._is_active = False
        if self.pipeline is not None and self.pipeline.running:
            for source in self._sources():
                self.pipeline.control.pause(source)
        return self._success

    def on_cleanup(self, _: object) -> Any:
        """Close the pipeline."""
        self._close()
        return self._success

    on_shutdown = on_error = on_cleanup

    def close(self) -> None:
        """Close the pipeline, and destroy the node."""
        self._close()
        self.node.destroy_node()

    def _close(self) -> None:
        pipeline, self.pipeline, self._is_active = self.pipeline, None, False
        if pipeline is None:
            return
        for key in self._live:
            self.node.undeclare_parameter(key)
        self._live = set()
        try:
            pipeline.close()
        except EdgertError as error:
            self.node.get_logger().error(str(error))
        release_node(self.node)

    def _log_failure(self, error: EdgertError) -> Any:
        self.node.get_logger().error(str(error))
        return self._failure

    def _sources(self) -> list[str]:
        assert self.pipeline is not None
        return list(self.pipeline.control.show()["sources"])

    def _show_live_keys(self, pipeline: Pipeline) -> dict[str, Any]:
        """Make every live key a parameter with its present value; return the values that the launch file gives."""
        descriptor = import_module("rcl_interfaces.msg").ParameterDescriptor(dynamic_typing=True)
        parameter, node = import_module("rclpy.parameter").Parameter, self.node
        self._is_showing, self._shown_file, declared = True, pipeline.file, dict[str, Any]()
        try:
            live = {key: _parameter(value) for key, value in pipeline.control.show()["live"].items()}
            for key in self._live - live.keys():
                node.undeclare_parameter(key)
            for key, value in live.items():
                if not node.has_parameter(key):
                    # The launch file gives values at the start only; later, parameters are as the pipeline runs.
                    made = node.declare_parameter(key, value, descriptor, ignore_override=bool(self._live))
                    declared[key] = made.value
                elif node.get_parameter(key).value != value:
                    node.set_parameters([parameter(key, value=value)])
            self._live = {*live}
            return {key: value for key, value in declared.items() if value != live[key]}
        finally:
            self._is_showing = False

    def _set_parameters(self, parameters: list[Any]) -> Any:
        """Set live keys: all of them, or none, with the reason."""
        result = import_module("rcl_interfaces.msg").SetParametersResult
        to_python = import_module("rclpy.parameter").parameter_value_to_python  # lists instead of arrays
        values = {one.name: to_python(one.get_parameter_value()) for one in parameters if one.name in self._live}
        try:
            if values and self.pipeline is not None and not self._is_showing:
                self.pipeline.control.set_keys(values)
        except EdgertError as error:
            return result(successful=False, reason=str(error))
        return result(successful=True)

    def _look(self) -> None:
        """Show live keys that another program changed; unconfigure the node if its pipeline has ended."""
        if self.pipeline is None:
            return
        if self.pipeline.file is not self._shown_file:
            self._show_live_keys(self.pipeline)
        if not self._is_active or self.pipeline.running:
            return
        try:
            self.pipeline.wait(0)
            self.node.get_logger().info("the pipeline has ended")
        except EdgertError as error:
            self.node.get_logger().error(str(error))
        self.node.trigger_deactivate()
        self.node.trigger_cleanup()


def _parameter(value: Any) -> Any:
    """Return a live value as a parameter: itself, or as JSON if ROS 2 has no such type."""
    if isinstance(value, _PLAIN):
        return value
    is_list = isinstance(value, list) and value and len({type(one) for one in value}) == 1
    return value if is_list and isinstance(value[0], _PLAIN) else json.dumps(value)


def main() -> int:
    """Configure and activate a node, and spin it until it is interrupted; return the exit code.

    With the parameter ``autostart:=false`` it waits for ``ros2 lifecycle set``.
    """
    rclpy = import_rclpy("")
    rclpy.init(args=sys.argv)
    pipeline_node = PipelineNode()
    pipeline_node.node.declare_parameter("autostart", True)
    try:
        if pipeline_node.node.get_parameter("autostart").value:
            pipeline_node.node.trigger_configure()
            if pipeline_node.pipeline is None:
                return 1
            pipeline_node.node.trigger_activate()
        with suppress(KeyboardInterrupt, import_module("rclpy.executors").ExternalShutdownException):
            rclpy.spin(pipeline_node.node)
        return 0
    finally:
        pipeline_node.close()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
