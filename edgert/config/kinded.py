"""Sections whose keys depend on the kind that they name: a ``sink: video`` has other keys than a ``sink: jsonl``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from edgert.config.fields import Section
from edgert.errors import ConfigError, nearest
from edgert.kinds import PAGE, Registry

WITHIN = "within_kind"
"""Type of the pydantic error that stands for those of the kind's own section, which its context holds."""
EXPLAINED = "edgert"
"""Type of the one that stands for a ConfigError, which its context holds."""
_Self = TypeVar("_Self", bound="Kinded")


class Kinded(Section):
    """A family of sections. Read as a family, a mapping becomes the section of the kind that it names.

    Attributes:
        family: the key that names the kind, and where kinds are looked up; set on the family itself alone.
    """

    family: ClassVar[tuple[str, Registry]]

    @model_validator(mode="wrap")
    @classmethod
    def _of_kind(cls: type[_Self], data: Any, handler: ModelWrapValidatorHandler[_Self], info: ValidationInfo) -> _Self:
        if "family" not in vars(cls) or not isinstance(data, dict):
            return handler(data)
        key, registry = cls.family
        # `sink: null`, as YAML reads it, is a name.
        kind, names = "null" if data[key] is None else str(data[key]), registry.names()
        if kind not in names:
            detail = {"type": "value_error", "loc": (key,), "input": data[key], "msg": _one_of(names, kind)}
            raise _within([detail])
        try:
            own = section_of(cls, registry, kind)
        except ConfigError as error:
            detail = {"type": EXPLAINED, "loc": (key,), "input": data[key], "msg": error.what, "ctx": {"error": error}}
            raise _within([detail]) from error
        try:
            return own.model_validate({**data, key: kind}, context=info.context)
        except ValidationError as error:
            raise _within(error.errors(include_url=False)) from error

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """For a family, the keys of all kinds, each with what any of them takes."""
        schema = handler.resolve_ref_schema(handler(core))
        if "family" not in vars(cls):
            return schema
        key, registry = cls.family
        for kind in registry.names():
            own = section_of(cls, registry, kind).model_json_schema(by_alias=True)
            for name, part in own["properties"].items():
                schema["properties"].setdefault(name, part)
        named = {name: part for name, part in schema["properties"][key].items() if name != "type"}
        if names := registry.names():
            written = [*names, None] if "null" in names else list(names)
            schema["properties"][key] = {**named, "enum": written}
        return schema


@dataclass(frozen=True, slots=True)
class KindIn:
    """Marks text that names a kind."""

    registry: Registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._vetted, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(self.registry.names()), "type": "string"}

    def _vetted(self, name: str) -> str:
        names = self.registry.names()
        if name not in names:
            raise ValueError(_one_of(names, name))
        try:
            self.registry.vet(name)
        except ConfigError as error:
            raise PydanticCustomError(EXPLAINED, "it cannot be used", {"error": error}) from error
        return name


def section_of(family: type[_Self], registry: Registry, kind: str) -> type[_Self]:
    """The section of a kind. Raises ConfigError when the kind is not there, or is of another family."""
    found = registry.get(kind)
    if not issubclass(found, family):
        raise ConfigError(
            f"{registry.noun} {kind!r} cannot be used",
            why=f"{found.__module__}:{found.__name__} does not derive from edgert.config.{family.__name__}",
            fix=PAGE,
        )
    return found


def flattened(details: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """pydantic's error details, those of kinds' own sections in the place of the one that stands for them."""
    found: list[Mapping[str, Any]] = []
    for detail in details:
        inner = detail["ctx"]["details"] if detail["type"] == WITHIN else ()
        placed = [{**one, "loc": (*detail["loc"], *one["loc"])} for one in inner]
        found += flattened(placed) if placed else [detail]
    return found


def _one_of(names: Sequence[str], written: str) -> str:
    if not names:
        return "expected a kind, but no package adds any"
    many = f"{', '.join(names[:-1])} or " if len(names) > 1 else ""
    return f"expected {many}{names[-1]}{nearest(written, names)}"


def _within(details: Sequence[Any]) -> PydanticCustomError:
    return PydanticCustomError(WITHIN, "see its own errors", {"details": tuple(details)})
