"""What is kept in the store besides engines: under which facts each was last built, and what kernels took."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from pathlib import Path

from edgert.backend.base import Store
from edgert.backend.trt.made import Made
from edgert.backend.trt.origin import Facts, key_of
from edgert.errors import ArtifactError

log = logging.getLogger("edgert.backend")


def keep(store: Store, made: Made, machine: Facts) -> None:
    """Keeps an engine, what it was made under, and what was measured. A store that cannot be written to costs time
    at the next start, nothing else; that is said.

    Args:
        machine: the facts of the machine alone, which timings hold for.
    """
    try:
        _put(store, made.key, made.content)
        _put(store, _last_key(made.request.title), json.dumps(dict(made.facts)).encode())
        if made.result.timing_cache:
            _put(store, _timing_key(machine), made.result.timing_cache)
    except ArtifactError as error:
        log.warning("%s", error)


def last_facts(store: Store | None, title: str) -> Facts | None:
    """Under which facts an engine of that title was last built; None where it never was, or nobody knows."""
    content = _get(store, _last_key(title))
    if not content:
        return None
    try:
        return {str(name): str(value) for name, value in json.loads(content).items()}
    except (ValueError, AttributeError):  # written by another edgert: then nobody knows
        return None


def timing_cache(store: Store | None, machine: Facts) -> bytes:
    """What earlier builds measured on this machine; empty for nothing."""
    return _get(store, _timing_key(machine))


def _last_key(title: str) -> str:
    return f"trt-last-{hashlib.sha256(title.encode()).hexdigest()[:40]}"


def _timing_key(machine: Facts) -> str:
    return key_of(machine).replace("trt-", "trt-timing-", 1)


def _get(store: Store | None, key: str) -> bytes:
    path = store.get(key) if store is not None else None
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:  # removed by another process in this moment
        log.info("%s", error)
        return b""


def _put(store: Store, key: str, content: bytes) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
            path = Path(folder) / "content"
            path.write_bytes(content)
            store.put(key, path)
    except OSError as error:
        raise ArtifactError("an engine could not be kept", why=str(error), fix="free some space") from error
