"""One step of a build, and what comes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from edgert import __version__
from edgert.errors import ArtifactError
from edgert.shipped import checkout


@dataclass(frozen=True)
class Product:
    """What a step made.

    Attributes:
        files: name → content.
        evidence: one line, how the step's promise was found kept.
    """

    files: Mapping[str, bytes]
    evidence: str = ""

    @cached_property
    def digest(self) -> str:
        """Equal for equal files."""
        return digest_of({name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()})

    def json(self, name: str) -> Any:
        """A file as plain data. Raises ArtifactError when the step made no such file, or it is no JSON."""
        try:
            return json.loads(self.files[name])
        except (KeyError, ValueError) as error:
            raise ArtifactError(
                f"a step of the build left no {name!r}", why=str(error), fix="clear the cache: EDGERT_CACHE"
            ) from error


class Report:
    """What a running step may tell; by default nobody listens."""

    def progress(self, done: int, total: int, detail: str = "") -> None:
        """How far it is."""

    def note(self, text: str) -> None:
        """A line worth knowing."""


@dataclass(frozen=True)
class Step:
    """Work that is done once for equal facts.

    Attributes:
        name: ``calibrate``.
        subject: the model it is about; empty for the whole pipeline.
        recipe: raised when the step's own code makes something else of the same facts.
        facts: everything that the product depends on, as plain data; files as their digests.
        make: does the work.
        promise: holds the product to what the step promises and says how, in one line; raises where it is not kept.
        holds: whether a product from the cache still does, where facts alone cannot tell.
    """

    name: str
    subject: str
    recipe: int
    facts: Any
    make: Callable[[Report], Mapping[str, bytes]]
    promise: Callable[[Mapping[str, bytes]], str] = field(default=lambda files: "")
    holds: Callable[[Product], bool] = field(default=lambda product: True)

    @cached_property
    def key(self) -> str:
        """Under which the product is kept. The subject's name makes no difference."""
        return digest_of([self.name, self.recipe, code_version(), self.facts])[:40]


@lru_cache(maxsize=1)
def code_version() -> str:
    """This edgert's version; in a checkout, where code changes under one version, with a digest of the code."""
    root = checkout()
    if root is None:
        return __version__
    found = hashlib.sha256()
    for package in ("dla", "edgert"):
        for path in sorted((root / package).rglob("*.py")):
            found.update(path.read_bytes())
    return f"{__version__}+{found.hexdigest()[:16]}"


def digest_of(data: Any) -> str:
    """SHA-256 of plain data in hex."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()


def to_json(data: Any) -> bytes:
    """Plain data as a file: equal data give equal bytes."""
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
