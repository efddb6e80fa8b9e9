"""Registries of the kinds that a pipeline file can name: sources, stages, sinks, decoders, trackers and backends.

A registry maps the name of a kind to its class. edgert lists its kinds in tables beside them, other packages in entry
points (``edgert.sinks`` and so on). A class is imported when a file needs it. docs/extending.md shows how to write one.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, cast

from edgert.errors import ConfigError, EdgertError, nearest

_OWN_PACKAGE = "edgert"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+.\-]+")  # two letters at least: C:\ is a path, not a source
PAGE = "docs/extending.md lists what it needs, and edgert.testing checks it"


@dataclass(frozen=True, slots=True)
class Claim:
    """A package's claim that a class is a kind. ``target`` is the class, or ``module:Class``."""

    name: str
    target: str | type[Any]
    package: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class Registry:
    """All kinds of one sort.

    Attributes:
        noun: word for one of them, such as ``sink``.
        group: group of entry points of other packages, such as ``edgert.sinks``.
        home: ``module:TABLE`` of edgert's own kinds: name → class, or ``module:Class`` where that is slow to import.
        facts: required class attribute → its type.
        methods: names of required methods.
        task: task of decoders, which have one registry for each; their entry points are called ``task.name``.
    """

    noun: str
    group: str
    home: str
    facts: Mapping[str, type]
    methods: tuple[str, ...]
    task: str = ""

    @property
    def own(self) -> Mapping[str, str | type[Any]]:
        """Edgert's own kinds: name → class, or ``module:Class``."""
        return cast("Mapping[str, str | type[Any]]", import_target(self.home))

    def names(self) -> tuple[str, ...]:
        """Return edgert's own names, then those of installed packages. Imports none of them."""
        return tuple(dict.fromkeys([*self.own, *(claim.name for claim in self.foreign())]))

    def foreign(self) -> tuple[Claim, ...]:
        """Return the kinds of installed packages, by name. Imports none of them."""
        found = _claims(self.group, tuple(sys.path))
        if not self.task:
            return found
        prefix = f"{self.task}."
        return tuple(replace(one, name=one.name.removeprefix(prefix)) for one in found if one.name.startswith(prefix))

    def vet(self, name: str) -> None:
        """Check that a kind exists and can be used, without importing edgert's own. Raises ConfigError."""
        if name not in self.own or any(claim.name == name for claim in self.foreign()):
            self.get(name)

    def get(self, name: str) -> type[Any]:
        """Return the class of a kind, imported and checked.

        Raises ConfigError: no kind has that name, two packages claim it, its class cannot be imported, or lacks a
        required member.
        """
        claims = [claim for claim in self.foreign() if claim.name == name]
        if name in self.own:
            claims.insert(0, Claim(name, self.own[name], _OWN_PACKAGE))
        if not claims:
            known = self.names()
            what = f"no {self.noun} {name!r}{nearest(name, known)}"
            raise ConfigError(what, fix=f"known: {', '.join(known) or 'none'}")
        if len(claims) > 1:
            raise ConfigError(
                f"{self.noun} {name!r} is claimed by {len(claims)} packages: {' and '.join(map(str, claims))}",
                why="the name does not tell which one is meant",
                fix=f"uninstall {claims[1].package}, or have it choose another name",
            )
        return self._checked_class(claims[0])

    def missing(self, found: object) -> str:
        """Return why an object is no class of this sort; empty if it is one."""
        if not isinstance(found, type) and all(found is not own for own in self.own.values()):  # a source's record
            return "is not a class"
        for name, wanted in self.facts.items():
            if not isinstance(getattr(found, name, None), wanted):
                return f"has no {name}: ClassVar[{wanted.__name__}]"
        lacks = [name for name in self.methods if not callable(getattr(found, name, None))]
        return f"has no method {lacks[0]}" if lacks else ""

    def _checked_class(self, claim: Claim) -> type[Any]:
        if not _NAME.fullmatch(claim.name):
            rule = "two or more letters, digits, _ - + ., a letter first"
            raise self._claim_error(claim, f"{claim.name!r} is no name: {rule}")
        try:
            found = import_target(claim.target) if isinstance(claim.target, str) else claim.target
        except EdgertError:
            raise
        except Exception as error:  # another package's code may raise anything while it is imported
            raise self._claim_error(claim, f"{claim.target}: {type(error).__name__}: {error}") from error
        if missing := self.missing(found):
            raise self._claim_error(claim, f"{claim.target} {missing}")
        return cast("type[Any]", found)

    def _claim_error(self, claim: Claim, why: str) -> ConfigError:
        return ConfigError(f"{self.noun} {claim.name!r} of package {claim} cannot be used", why=why, fix=PAGE)


def import_target(target: str) -> Any:
    """Import ``module:name`` and return that object."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


@cache
def _claims(group: str, path: tuple[str, ...]) -> tuple[Claim, ...]:
    found = [
        Claim(point.name, point.value, point.dist.name if point.dist else "?", point.dist.version if point.dist else "")
        for point in _entry_points(path).select(group=group)
    ]
    return tuple(sorted(found, key=lambda claim: (claim.name, claim.package)))


@cache
def _entry_points(path: tuple[str, ...]) -> Any:
    """Return the entry points of all groups, cached: finding them opens every package on the path."""
    from importlib.metadata import entry_points  # 40 ms, which `import edgert` need not take

    return entry_points()


SINKS = Registry(
    "sink",
    "edgert.sinks",
    "edgert.stages.kinds:SINKS",
    {"takes_images": bool, "shows_images": bool},
    ("model_validate", "make"),
)
SOURCES = Registry(
    "source", "edgert.sources", "edgert.stages.source.kinds:KINDS", {"unused": dict}, ("make", "is_live")
)
TRACKERS = Registry("tracker", "edgert.trackers", "edgert.stages.kinds:TRACKERS", {}, ("model_validate", "make"))
STAGES = Registry(
    "stage", "edgert.stages", "edgert.stages.kinds:STAGES", {"takes_images": bool}, ("model_validate", "make")
)
OWN_BACKENDS = {
    "auto": "edgert.backend.ort:OrtBackend",
    "ort": "edgert.backend.ort:OrtBackend",
    "onnxruntime-cuda": "edgert.backend.ort.cuda:OrtCudaBackend",
    "openvino": "edgert.backend.openvino:OpenVinoBackend",
    "tensorrt": "edgert.backend.tensorrt.trt_backend:TrtBackend",
    "null": "edgert.backend.null:NullBackend",
}
"""Backends of edgert, listed here because everything in ``edgert.backend`` is slow to import."""
BACKENDS = Registry("backend", "edgert.backends", "edgert.kinds:OWN_BACKENDS", {"name": str}, ("compile",))
_READS = ("fits", "check", "__call__")
DECODERS: Mapping[str, Registry] = {
    task: Registry(
        f"{task} decoder", "edgert.decoders", f"edgert.stages.decode.kinds:{task.upper()}", facts, methods, task
    )
    for task, facts, methods in (
        ("detect", {"uncertain": tuple}, ("fits", "class_count", "read")),
        ("classify", {}, _READS),
        ("segment", {}, _READS),
        ("keypoints", {}, _READS),
        ("embed", {}, _READS),
        ("text", {}, _READS),
        ("depth", {}, _READS),
        ("image", {}, _READS),
        ("anomaly", {}, _READS),
    )
}
"""Registries by task: a detector's decoders return boxes, others the complete record."""
REGISTRIES = (SOURCES, STAGES, SINKS, *DECODERS.values(), TRACKERS, BACKENDS)


def foreign() -> Iterator[tuple[Registry, Claim]]:
    for registry in REGISTRIES:
        yield from ((registry, claim) for claim in registry.foreign())


def misnamed_decoders() -> Iterator[Claim]:
    """Yield decoders of installed packages whose names lack a task, so that they cannot be used."""
    for claim in _claims("edgert.decoders", tuple(sys.path)):
        if claim.name.partition(".")[0] not in DECODERS:
            yield claim
