"""Node of rclpy with its own thread, shared by all stages of a pipeline; or the program's node.

Messages are received and published serialized, so that rclpy does not make a Python object of every pixel.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgert.errors import ConfigError, DeviceError, cause, raised_as
from edgert.stages.ros2.ros_link import Link, Publisher, Quality, Subscription, Take, keep_freed_memory
from edgert.stages.source.live import FinalError

log = logging.getLogger("edgert.ros2")

_INSTALLED = Path("/opt/ros")
_JOIN_S = 2.0


class RclpyNode(Link):
    """Node with the thread that spins it; or a program's own node, which the program spins.

    Args:
        simulated: whether its time is that of ``/clock``.
        own: program's node, used instead of a new one.
    """

    def __init__(self, name: str, simulated: bool, own: Any = None) -> None:
        self.node = own
        self._context: Any = None
        self._executor: Any = None
        self._thread: threading.Thread | None = None
        if own is None:
            self._create_node(name, simulated)

    def _create_node(self, name: str, simulated: bool) -> None:
        keep_freed_memory()
        rclpy = import_rclpy("")
        self._context = _rclpy_module("context").Context()
        rclpy.init(args=[], context=self._context)
        given = [_rclpy_module("parameter").Parameter("use_sim_time", value=True)] if simulated else []
        options = {"context": self._context, "parameter_overrides": given, "enable_rosout": False}
        self.node = _rclpy_module("node").Node(name, **options)
        self._executor = _rclpy_module("executors").SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="edgert:ros2", daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        with suppress(_rclpy_module("executors").ExternalShutdownException):
            self._executor.spin()

    def now_ns(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    def topics(self) -> Mapping[str, Sequence[str]]:
        with _as_device_error("the topics cannot be listed"):
            known = self.node.get_topic_names_and_types()
            return {name: kinds for name, kinds in known if self.node.count_publishers(name)}

    def subscribe(self, topic: str, kind: str, quality: Quality, take: Take) -> Subscription:
        with _as_device_error(f"cannot subscribe to {topic}"):
            return _Subscription(self.node, topic, kind, quality, take)

    def publisher(self, topic: str, kind: str, quality: Quality) -> Publisher:
        with _as_device_error(f"cannot publish {topic}"):
            return _Publisher(self.node, topic, kind, quality)

    def disconnect(self) -> None:
        if self._context is None:  # the program's node
            return
        # The order matters: a thread that spins while the context shuts down aborts the process.
        self._executor.shutdown()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self.node.destroy_node()
        self._context.try_shutdown()


def shared_node(pipeline: str, simulated: bool, where: str) -> Link:
    """Return the node of a pipeline in this process, created by the first stage that needs it.

    Raises:
        DeviceError: rclpy is missing, or built for another Python.
    """
    import_rclpy(where)
    name = f"edgert_{re.sub(r'[^A-Za-z0-9]+', '_', pipeline).strip('_') or 'pipeline'}"
    return Link.share(pipeline, lambda: RclpyNode(name, simulated))


def use_node(pipeline: str, node: Any) -> None:
    """Set the node that a pipeline's stages use, which the program spins.

    Raises:
        ConfigError: a pipeline of that name runs in this process.
    """
    with Link.turn:
        if pipeline in Link.shared:
            what, why = f"a pipeline named {pipeline!r} runs already", "another node of this process has its topics"
            raise ConfigError(what, why=why, fix="give each file its own name:")
        Link.shared[pipeline] = link = RclpyNode("", False, node)
        link.users += 1


def release_node(node: Any) -> None:
    """Undo :func:`use_node`."""
    with Link.turn:
        for key in [key for key, one in Link.shared.items() if isinstance(one, RclpyNode) and one.node is node]:
            del Link.shared[key]


def import_rclpy(where: str, kinds: Sequence[str] = ()) -> Any:
    """Return the module rclpy.

    Args:
        where: place of the stage that needs it.
        kinds: message types that it also needs.

    Raises:
        FinalError: rclpy is missing or built for another Python, or the package of a message type is missing. The fix
            says what to source or install.
    """
    try:
        found = import_module("rclpy")
        import_module("rclpy._rclpy_pybind11")
    except ImportError as error:
        raise _missing_rclpy_error(where, cause(error)) from error
    for kind in kinds:
        message_class(kind, where)
    return found


def _rclpy_module(name: str) -> Any:
    return import_module(f"rclpy.{name}")


def _missing_rclpy_error(where: str, why: str) -> FinalError:
    """Return the error for a missing rclpy, with what to source or which Python to use."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    spec = find_spec("rclpy")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    built = [match[1] for folder in folders for path in Path(folder).glob("_rclpy_pybind11*.so")
             if (match := re.search(r"cpython-(\d+)", path.name))]  # fmt: skip
    if built and (other := f"{built[0][0]}.{built[0][1:]}") != here:
        distribution = os.environ.get("ROS_DISTRO", "")
        what = f"rclpy of ROS 2 {distribution} was built for Python {other}".replace("  ", " ")
        fix = f"run edgert with python{other}, or source the ROS 2 of Python {here}"
        return FinalError(what, why=f"this is Python {here}", where=where, fix=fix)
    setups = {path.parent.name: path for path in sorted(_INSTALLED.glob("*/setup.bash"))}
    fitting = [path for name, path in setups.items() if list((_INSTALLED / name).glob(f"lib/python{here}"))]
    if fitting:
        fix = f"source {fitting[-1]}, then start it again"
    elif setups:
        other = " and ".join(setups)
        fix = f"here is ROS 2 {other}, for another Python than {here}: source its setup.bash and use its Python"
    else:
        fix = "install ROS 2 and source its setup.bash; without ROS, use ros2+zenoh:// or zenoh: with a Zenoh router"
    return FinalError(f"this Python {here} has no rclpy", why=why, where=where, fix=fix)


def message_class(kind: str, where: str = "") -> Any:
    """Return rclpy's class of a message type. Raises FinalError if its package is not installed."""
    package, _, name = kind.replace("/msg/", "/").partition("/")
    distribution = os.environ.get("ROS_DISTRO", "$ROS_DISTRO")
    fix = f"sudo apt install ros-{distribution}-{package.replace('_', '-')}"
    with raised_as(FinalError, f"the messages of {package} are missing", of=ImportError, where=where, fix=fix):
        return getattr(import_module(f"{package}.msg"), name)


def _as_device_error(what: str) -> AbstractContextManager[None]:
    fix = "close the pipeline before its node is destroyed and before rclpy.shutdown()"
    return raised_as(DeviceError, what, of=RuntimeError, fix=fix)  # RCLError and InvalidHandle


def _qos_profile(quality: Quality) -> Any:
    qos = _rclpy_module("qos")
    reliability, durability = qos.ReliabilityPolicy, qos.DurabilityPolicy
    return qos.QoSProfile(
        depth=quality.depth,
        reliability=reliability.RELIABLE if quality.reliable else reliability.BEST_EFFORT,
        durability=durability.TRANSIENT_LOCAL if quality.latched else durability.VOLATILE,
    )


def _event_module() -> Any:
    """Return the module with rclpy's event callbacks, which has another name in Humble."""
    return import_module("rclpy.event_handler" if find_spec("rclpy.event_handler") else "rclpy.qos_event")


def _policy_name(event: Any) -> str:
    """Return the name of the QoS policy that is incompatible."""
    return str(_rclpy_module("qos").qos_policy_name_from_kind(event.last_policy_kind)).lower()


class _Subscription:
    def __init__(self, node: Any, topic: str, kind: str, quality: Quality, take: Take) -> None:
        self._node, self._topic, self._quality = node, topic, quality
        self.trouble = ""
        callbacks = _event_module().SubscriptionEventCallbacks(incompatible_qos=self._on_incompatible_qos)
        options = {"raw": True, "event_callbacks": callbacks}
        self._subscription = node.create_subscription(
            message_class(kind), topic, lambda data: take(data, 0), _qos_profile(quality), **options
        )

    def _on_incompatible_qos(self, event: Any) -> None:
        offered = [str(one.qos_profile.reliability.name).lower().replace("_", " ")
                   for one in self._node.get_publishers_info_by_topic(self._topic)]  # fmt: skip
        self.trouble = (
            f"the {_policy_name(event)} of a publisher is incompatible with this subscription ({self._quality}); "
            f"it offers {' and '.join(offered) or 'less'}"
        )

    def close(self) -> None:
        """End it."""
        self._node.destroy_subscription(self._subscription)


class _Publisher(Publisher):
    def __init__(self, node: Any, topic: str, kind: str, quality: Quality) -> None:
        self._node, self._topic, self._quality = node, topic, quality
        callbacks = _event_module().PublisherEventCallbacks(incompatible_qos=self._on_incompatible_qos)
        options = {"event_callbacks": callbacks}
        self._publisher = node.create_publisher(message_class(kind), topic, _qos_profile(quality), **options)

    def publish(self, pieces: Sequence[bytes | memoryview]) -> None:
        with _as_device_error(f"cannot publish {self._topic}"):
            self._publisher.publish(b"".join(pieces))

    def _on_incompatible_qos(self, event: Any) -> None:
        fix = f"subscribe with {self._quality}"
        log.error("a subscriber of %s gets nothing: its %s is incompatible; %s", self._topic, _policy_name(event), fix)

    def close(self) -> None:
        """End it."""
        self._node.destroy_publisher(self._publisher)
