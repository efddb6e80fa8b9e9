"""A built engine with all that is known of it, as an object and as bytes that are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgert.backend.trt.inspect import EngineFacts, engine_facts, logged_facts
from edgert.backend.trt.origin import Facts, key_of
from edgert.backend.trt.pool import Pools
from edgert.backend.trt.request import BuildRequest, Format
from edgert.backend.trt.result import BuildResult
from edgert.backend.trt.retry import Built
from edgert.backend.trt.wire import plain_result, result_of
from edgert.errors import ArtifactError

_SCHEMA = 1


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """An engine that can be opened.

    Attributes:
        facts: under which it was built.
        request: what was built in the end; placement, pools and formats may differ from what was asked for.
        result: the plan, and what TensorRT said.
        attempts: why it was tried otherwise, each in words; empty where the first try went well.
        cached: whether it was there already.
    """

    facts: Facts
    request: BuildRequest
    result: BuildResult
    attempts: tuple[str, ...] = ()
    cached: bool = False

    @property
    def key(self) -> str:
        """The name it is kept under."""
        return key_of(self.facts)

    @property
    def engine_facts(self) -> EngineFacts:
        """Its layers: told by the inspector, else by the log."""
        return engine_facts(self.result.inspector) if self.result.inspector else logged_facts(self.result.log)

    @property
    def record(self) -> bytes:
        """Everything but the plan, as JSON on one line."""
        plain = {
            "schema": _SCHEMA,
            "facts": dict(self.facts),
            "placement": dict(self.request.placement),
            "pools": asdict(self.request.pools),
            "formats": {name: asdict(form) for name, form in self.request.formats.items()},
            "attempts": list(self.attempts),
            "result": plain_result(self.result),
        }
        return json.dumps(plain, sort_keys=True).encode() + b"\n"

    @property
    def content(self) -> bytes:
        """All of it, as it is kept."""
        return self.record + self.result.plan


def made_of(built: Built, facts: Facts) -> Made:
    """What came of a build."""
    reasons = tuple(attempt.reason for attempt in built.attempts if attempt.reason)
    return Made(facts, built.request, built.result, reasons)


def read_made(content: bytes, request: BuildRequest, where: str = "") -> Made:
    """Reads :attr:`Made.content`.

    Args:
        request: what it was built for; asks for the same facts.

    Raises:
        ArtifactError: the bytes are no kept engine.
    """
    record, _, plan = content.partition(b"\n")
    plain = read_record(record, where)
    formats = {name: Format(**form) for name, form in plain.get("formats", {}).items()}
    final = replace(request, placement=plain["placement"], pools=Pools(**plain["pools"]), formats=formats)
    return Made(plain["facts"], final, result_of(plain["result"], plan), tuple(plain["attempts"]), cached=True)


def read_record(record: bytes, where: str = "") -> Mapping[str, Any]:
    """Reads :attr:`Made.record`. Raises ArtifactError for what is none."""
    try:
        plain: Mapping[str, Any] = json.loads(record)
        if plain["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {plain['schema']!r}, not {_SCHEMA}")
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            "this is no engine that edgert kept",
            why=f"{type(error).__name__}: {error}",
            where=where,
            fix="remove it: the engine is then compiled again",
        ) from error
    return plain
