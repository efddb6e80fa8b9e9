"""Random ROS 2 messages, and rosbags as the other implementation that they are compared with."""

import random
from typing import Any

import numpy as np
import pytest

from edgert.recording.cdr import _fields
from edgert.recording.definitions import DEFINITIONS, full_name

DISTRIBUTIONS = ("humble", "jazzy", "kilted", "lyrical")
# A byte is signed in rosbags and unsigned in ROS.
_LIMITS = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "uint8": (0, 255), "byte": (0, 127)}


def typestore(distribution: str) -> Any:
    """Return rosbags' types of a distribution, with those of vision_msgs, which it does not bring along."""
    pytest.importorskip("rosbags", reason="rosbags is not installed: pip install -e '.[ros-test]'")
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores[f"ROS2_{distribution.upper()}"])
    own = {name: text for name, text in DEFINITIONS.items() if name.startswith("vision_msgs")}
    store.register({key: value for name, text in own.items() for key, value in get_types_from_msg(text, name).items()})
    return store


def random_message(name: str, rng: random.Random) -> dict[str, Any]:
    return {path: _random(kind, length, rng) for path, kind, length, _ in _fields(name)}


def _random(kind: str, length: str, rng: random.Random) -> Any:
    if length:
        count = int(length.strip("[]") or rng.randrange(4))
        values = [_random(kind, "", rng) for _ in range(count)]
        return bytes(values) if kind == "uint8" else values
    if kind == "string":
        return "".join(rng.choices("abcdé/_ 日0", k=rng.randrange(9)))
    if kind == "float64":
        return rng.uniform(-1e6, 1e6)
    if kind == "bool":
        return rng.random() < 0.5
    return rng.randint(*_LIMITS[kind]) if kind in _LIMITS else random_message(full_name(kind), rng)


def as_object(name: str, message: dict[str, Any], store: Any) -> Any:
    values = {}
    for line in DEFINITIONS[name].splitlines():
        typed, field = line.split()[:2]
        kind = typed.partition("[")[0]
        if "/" not in kind:
            values[field] = _value(kind, message[field], "[" in typed)
        elif "[" in typed:
            values[field] = [as_object(full_name(kind), one, store) for one in message[field]]
        else:
            inner = {path.partition(".")[2]: value for path, value in message.items() if path.startswith(f"{field}.")}
            values[field] = as_object(full_name(kind), inner, store)
    return store.types[name](**values)


def _value(kind: str, value: Any, is_array: bool) -> Any:
    if kind == "uint8" and is_array:
        return np.frombuffer(value, np.uint8)
    return np.array(value, np.float64) if is_array else value


def plain(message: Any) -> Any:
    """Return a decoded message with bytes and lists in the place of views and arrays."""
    if isinstance(message, dict):
        return {path: plain(value) for path, value in message.items()}
    if isinstance(message, memoryview):
        return bytes(message)
    if isinstance(message, np.ndarray | tuple):
        return list(message)
    return [plain(one) for one in message] if isinstance(message, list) else message
