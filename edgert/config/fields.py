"""Field types of the pipeline file, such as quantities with units and paths; and the base classes of its sections."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from edgert import installation, units
from edgert.errors import ConfigError, nearest, shown
from edgert.files import exists
from edgert.kinds import PAGE, Registry

# Messages about wrong values in place of pydantic's, for authors of pipeline files.

_Context = Mapping[str, Any]
_NUMBER, _WHOLE, _SWITCH = "expected a number", "expected a whole number", "expected true or false"
_KEYS, _LIST = "expected keys, each with a value", "expected a list"
_MESSAGES = {
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "bool_type": _SWITCH,
    "bool_parsing": _SWITCH,
    "string_type": "expected text; a number is text in quotes",
    "string_too_short": "expected some text",
    "dict_type": _KEYS,
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "list_type": _LIST,
    "tuple_type": _LIST,
}
_BOUND_MESSAGES: Mapping[str, Callable[[_Context], str]] = {
    "greater_than": lambda context: f"expected more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"expected {context['ge']:g} or more",
    "less_than": lambda context: f"expected less than {context['lt']:g}",
    "less_than_equal": lambda context: f"expected {context['le']:g} or less",
    "too_short": lambda context: f"expected entries, at least {context['min_length']}; got {context['actual_length']}",
    "too_long": lambda context: f"expected entries, at most {context['max_length']}; got {context['actual_length']}",
}
_QUOTE, _QUOTED = "'", r"'([^']+)'"
CODE_NAME = r"^([^:]*/)?[\w.]+:[\w.]+$"
"""``[FOLDER/]module:name``, see :func:`edgert.user_code.code_name`."""
_PATTERN_MESSAGES = {
    r"^[A-Za-z_][A-Za-z0-9_\-]*$": "expected a name: a-z, A-Z, digits, _ and -, not a digit first",
    CODE_NAME: "expected module:function",
}


def error_message(detail: Mapping[str, Any]) -> str:
    """Return the message for one of pydantic's error details (``ValidationError.errors()``).

    Kinds: https://docs.pydantic.dev/latest/errors/validation_errors/. Messages of edgert's own checks stay as they are.
    """
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind == "literal_error":
        words = str(context["expected"])  # 'warn', 'degrade' or 'stop'
        return f"expected {words.replace(_QUOTE, '')}{nearest(str(detail['input']), re.findall(_QUOTED, words))}"
    if kind in _BOUND_MESSAGES:
        return _BOUND_MESSAGES[kind](context)
    if kind == "string_pattern_mismatch" and context["pattern"] in _PATTERN_MESSAGES:
        return _PATTERN_MESSAGES[context["pattern"]]
    return _MESSAGES.get(kind) or str(detail["msg"]).removeprefix("Value error, ")


class Section(BaseModel):
    """A frozen mapping of the file, for which an unknown key is an error that suggests the nearest known one."""

    live: ClassVar[tuple[str, ...]] = ()
    """Keys that may change while the pipeline runs; see ``edgert ctl set``."""
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any, info: pydantic.ValidationInfo) -> Any:
        if isinstance(data, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            in_code = () if info.context else cls.model_fields  # code cannot write `from=`; files must not write more
            for key in data:
                if key not in known and key not in in_code:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key '{key}'{hint}",
                        {"key": key, "hint": nearest(str(key), known), "known": ", ".join(known)},
                    )
        return data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, with the keys marked that may change while the pipeline runs."""
        schema = handler.resolve_ref_schema(handler(core))
        for key in cls.live:
            schema["properties"][key]["live"] = True
        return schema


_NAME_BYTES, _PATH_BYTES = 255, 4095  # NAME_MAX and PATH_MAX of linux/limits.h


def _output_path(value: object) -> Path:
    """Return an output path, which is relative to the current folder."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("expected a path")
    names = [len(part.encode(errors="replace")) for part in Path(value).parts]
    if "\0" in str(value) or max(names) > _NAME_BYTES or sum(names) + len(names) > _PATH_BYTES:
        raise ValueError(f"expected a path whose names have at most {_NAME_BYTES} bytes")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # ~name of a user who does not exist here
        raise ValueError(f"expected a path; {error}") from error


def _input_path(value: object, info: pydantic.ValidationInfo) -> Path:
    return resolve_input(_output_path(value), Path((info.context or {}).get("directory", Path())))


def _labels_path(value: object, info: pydantic.ValidationInfo) -> Path:
    """Return the path of a labels file, or of a built-in list of that name."""
    path = _input_path(value, info)
    return installation.labels_named(str(value)) or path if not exists(path) else path


def _images_path(value: object, info: pydantic.ValidationInfo) -> object:
    """Return a path of images, or the name of a source that generates them, with the folder of its code absolute."""
    if not str(value).startswith(("python:", "synthetic:")):
        return _input_path(value, info)
    kind, _, rest = str(value).partition(":")
    directory = (info.context or {}).get("directory", Path())
    return Path(f"{kind}:{Path(directory, rest).absolute()}" if kind == "python" else str(value))


def resolve_input(path: Path, directory: Path) -> Path:
    """Return an input path relative to the pipeline file's folder; if only that exists, relative to the current folder.

    Paths of ``--set`` are typed in the current folder.
    """
    path = path.expanduser()
    there = directory / path
    return path.absolute() if not exists(there) and exists(path) else there


def _check_dla_pool(size_bytes: int) -> int:
    """Return the size of a DLA memory pool. Raises ValueError: TensorRT's documentation excludes this size."""
    if size_bytes < 4096 or size_bytes & (size_bytes - 1):
        raise ValueError(f"a pool of a DLA is a power of two of at least 4 KiB, not {size_bytes} bytes")
    return size_bytes


def _check_positive(size_bytes: int) -> int:
    if size_bytes <= 0:
        raise ValueError("expected more than 0 bytes")
    return size_bytes


def _accept_any_bytes(value: object, handler: pydantic.ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, str) and shown(value) != value else handler(value)


Text = Annotated[str, pydantic.WrapValidator(_accept_any_bytes)]
"""Text that may have non-UTF-8 bytes of a file name, which pydantic's strings refuse."""
_STRING = {"type": "string"}
OutputPath = Annotated[Path, BeforeValidator(_output_path), pydantic.WithJsonSchema({**_STRING, "format": "path"})]
FilePath = Annotated[Path, BeforeValidator(_input_path), pydantic.WithJsonSchema({**_STRING, "format": "path"})]
LabelsPath = Annotated[Path, BeforeValidator(_labels_path), pydantic.WithJsonSchema(_STRING)]
ImagesPath = Annotated[Path, BeforeValidator(_images_path), pydantic.WithJsonSchema(_STRING)]
Size = Annotated[
    tuple[int, int],
    BeforeValidator(units.parse_size),
    pydantic.WithJsonSchema({**_STRING, "examples": ["1280x720"]}),
]
Bytes = Annotated[int, BeforeValidator(units.parse_bytes), pydantic.WithJsonSchema({**_STRING, "examples": ["1.5GiB"]})]
PositiveBytes = Annotated[Bytes, AfterValidator(_check_positive)]
DlaPool = Annotated[Bytes, AfterValidator(_check_dla_pool)]
Watts = Annotated[float, BeforeValidator(units.parse_watts), pydantic.WithJsonSchema({**_STRING, "examples": ["15W"]})]
Seconds = Annotated[
    float, BeforeValidator(units.parse_seconds), pydantic.WithJsonSchema({**_STRING, "examples": ["60ms"]})
]
Watchdog = Annotated[
    Seconds,
    BeforeValidator(lambda value: "0s" if value is False or value == "off" else value),  # YAML reads off as false
    pydantic.WithJsonSchema({"anyOf": [{**_STRING, "examples": ["10s", "off"]}, {"const": False}]}),
]
"""Seconds; 0 is off."""
Cores = Annotated[
    float, BeforeValidator(units.parse_cores), pydantic.WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$")]
Fraction = Annotated[float, Field(ge=0, le=1)]


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, (str, int, float)) else value


def _class_names(value: object) -> object:
    """Return names of classes; numbers of classes become texts."""
    many = _as_tuple(value)
    if not isinstance(many, (list, tuple)):
        return many
    return tuple(str(name) if isinstance(name, int) and not isinstance(name, bool) else name for name in many)


def _parse_region(value: object) -> object:
    if (
        not isinstance(value, (list, tuple))
        or len(value) != 4
        or any(isinstance(part, bool) or not isinstance(part, (int, float)) for part in value)
        or not (0 <= value[0] < value[2] <= 1 and 0 <= value[1] < value[3] <= 1)
    ):
        raise ValueError("expected [x1, y1, x2, y2] as parts 0-1 of the frame, x1 < x2 and y1 < y2")
    return tuple(value)


def _parse_extent(value: object) -> object:
    """Parse ``[320, 480, 640]``: the smallest, usual and largest size; a single number is all three."""
    sizes: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value] * 3
    if len(sizes) != 3 or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError("expected one size, or [smallest, usual, largest], whole numbers from 1 on")
    if sizes != sorted(sizes):
        raise ValueError("expected [smallest, usual, largest] in that order")
    return tuple(sizes)


def _one_or_list(item: dict[str, Any], least: int = 0) -> pydantic.WithJsonSchema:
    many = {"type": "array", "items": item, **({"minItems": least} if least else {})}
    return pydantic.WithJsonSchema({"anyOf": [item, many]})


_FLOAT = {"type": "number"}
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_class_names),
    _one_or_list({"anyOf": [_STRING, {"type": "integer", "minimum": 0}]}),
]
PerChannel = Annotated[tuple[float, ...], BeforeValidator(_as_tuple), _one_or_list(_FLOAT, 1)]
_SIZE = {"type": "integer", "minimum": 1}
Extent = Annotated[
    tuple[int, int, int],
    BeforeValidator(_parse_extent),
    pydantic.WithJsonSchema({"anyOf": [_SIZE, {"type": "array", "items": _SIZE, "minItems": 3, "maxItems": 3}]}),
]
Inputs = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1), _one_or_list(_STRING, 1)]
Region = Annotated[
    tuple[float, float, float, float],
    BeforeValidator(_parse_region),
    pydantic.WithJsonSchema(
        {"type": "array", "items": {**_FLOAT, "minimum": 0, "maximum": 1}, "minItems": 4, "maxItems": 4}
    ),
]


# Sections whose keys depend on their kind: a ``sink: video`` has other keys than a ``sink: jsonl``.

KIND_ERRORS = "within_kind"
"""Type of a pydantic error whose context has the errors of the kind's own section."""
CONFIG_ERROR = "edgert"
"""Type of a pydantic error whose context has a ConfigError."""
_Self = TypeVar("_Self", bound="Kinded")


_NOTE_KEYS = ("default", "description", "title")


def _either_schema(known: JsonSchemaValue, part: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a key that accepts values of either of two schemas; its notes are those of the first."""
    one, other = ({name: value for name, value in each.items() if name not in _NOTE_KEYS} for each in (known, part))
    if other in (one, *one.get("anyOf", ())):
        return known
    notes = {name: value for name, value in known.items() if name in _NOTE_KEYS}
    return {**notes, "anyOf": [*(one["anyOf"] if one.keys() == {"anyOf"} else [one]), other]}


def _inline_references(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a part of a schema without references, because it is moved away from what they refer to."""
    if isinstance(part, list):
        return [_inline_references(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    target = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else {}
    return {key: _inline_references(one, definitions) for key, one in {**target, **part}.items() if key != "$ref"}


class Kinded(Section):
    """A family of sections: validating a mapping returns the section of the kind that it names.

    ``family`` is the key that names the kind, and the registry of the kinds.
    """

    family: ClassVar[tuple[str, Registry]]

    @model_validator(mode="wrap")
    @classmethod
    def _of_kind(
        cls: type[_Self], data: Any, handler: pydantic.ModelWrapValidatorHandler[_Self], info: pydantic.ValidationInfo
    ) -> _Self:
        if "family" not in vars(cls) or not isinstance(data, dict):
            return handler(data)
        key, registry = cls.family
        # `sink: null`, as YAML reads it, is a name.
        kind, names = "null" if data[key] is None else str(data[key]), registry.names()
        if kind not in names:
            detail = {"type": "value_error", "loc": (key,), "input": data[key], "msg": _expected_one_of(names, kind)}
            raise _kind_errors([detail])
        try:
            own = section_of_kind(cls, registry, kind)
        except ConfigError as error:
            detail = {
                "type": CONFIG_ERROR,
                "loc": (key,),
                "input": data[key],
                "msg": error.what,
                "ctx": {"error": error},
            }
            raise _kind_errors([detail]) from error
        try:
            return own.model_validate({**data, key: kind}, context=info.context)
        except ValidationError as error:
            raise _kind_errors(error.errors(include_url=False)) from error

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema; that of a family has the keys of all kinds, each with the values that any kind accepts."""
        schema = super().__get_pydantic_json_schema__(core, handler)
        if "family" not in vars(cls):
            return schema
        key, registry = cls.family
        for kind in registry.names():
            own = section_of_kind(cls, registry, kind).model_json_schema(by_alias=True)
            for name, whole in own["properties"].items():
                part = _inline_references(whole, own.get("$defs", {}))
                schema["properties"][name] = _either_schema(schema["properties"].get(name, part), part)
        named = {name: part for name, part in schema["properties"][key].items() if name != "type"}
        if names := registry.names():
            written = [*names, None] if "null" in names else list(names)
            schema["properties"][key] = {**named, "enum": written}
        return schema


@dataclass(frozen=True, slots=True)
class KindIn:
    """Annotation of a text field that names a kind."""

    registry: Registry

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._vetted, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(self.registry.names()), "type": "string"}

    def _vetted(self, name: str) -> str:
        names = self.registry.names()
        if name not in names:
            raise ValueError(_expected_one_of(names, name))
        try:
            self.registry.vet(name)
        except ConfigError as error:
            raise PydanticCustomError(CONFIG_ERROR, "it cannot be used", {"error": error}) from error
        return name


def section_of_kind(family: type[_Self], registry: Registry, kind: str) -> type[_Self]:
    """Return the section class of a kind. Raises ConfigError: there is no such kind, or it is of another family."""
    found = registry.get(kind)
    if not issubclass(found, family):
        raise ConfigError(
            f"{registry.noun} {kind!r} cannot be used",
            why=f"{found.__module__}:{found.__name__} does not derive from edgert.config.{family.__name__}",
            fix=PAGE,
        )
    return found


def flatten_errors(details: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return pydantic's error details, with each :data:`KIND_ERRORS` replaced by the errors in its context."""
    found: list[Mapping[str, Any]] = []
    for detail in details:
        inner = detail["ctx"]["details"] if detail["type"] == KIND_ERRORS else ()
        placed = [{**one, "loc": (*detail["loc"], *one["loc"])} for one in inner]
        found += flatten_errors(placed) if placed else [detail]
    return found


def _expected_one_of(names: Sequence[str], written: str) -> str:
    many = f"{', '.join(names[:-1])} or " if len(names) > 1 else ""
    return f"expected {many}{names[-1]}{nearest(written, names)}"


def _kind_errors(details: Sequence[Any]) -> PydanticCustomError:
    return PydanticCustomError(KIND_ERRORS, "see its own errors", {"details": tuple(details)})
