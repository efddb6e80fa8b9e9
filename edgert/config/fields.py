"""Field types of the pipeline file: quantities with units, paths, names, and the strict base of every section."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from edgert import units
from edgert.errors import nearest


class Section(BaseModel):
    """A mapping of the file: frozen, and a key it does not know is an error that names the nearest one."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known and key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key '{key}'{hint}",
                        {"key": key, "hint": nearest(str(key), known), "known": ", ".join(known)},
                    )
        return data


def _resolve(value: object, info: ValidationInfo) -> object:
    """Paths in the file are relative to the file."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("expected a path")
    base = (info.context or {}).get("directory", Path())
    return Path(base) / Path(value).expanduser()


def _output(value: object) -> object:
    """Outputs belong to whoever runs the pipeline: they are relative to the current folder."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("expected a path")
    return Path(value).expanduser()


_STRING = {"type": "string"}
OutputPath = Annotated[Path, BeforeValidator(_output), WithJsonSchema({**_STRING, "format": "path"})]
FilePath = Annotated[Path, BeforeValidator(_resolve), WithJsonSchema({**_STRING, "format": "path"})]
Size = Annotated[
    tuple[int, int], BeforeValidator(units.parse_size), WithJsonSchema({**_STRING, "examples": ["1280x720"]})
]
Bytes = Annotated[int, BeforeValidator(units.parse_bytes), WithJsonSchema({**_STRING, "examples": ["1.5GiB"]})]
Watts = Annotated[float, BeforeValidator(units.parse_watts), WithJsonSchema({**_STRING, "examples": ["15W"]})]
Seconds = Annotated[float, BeforeValidator(units.parse_seconds), WithJsonSchema({**_STRING, "examples": ["60ms"]})]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$")]
Fraction = Annotated[float, Field(ge=0, le=1)]


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, (str, int, float)) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]
PerChannel = Annotated[tuple[float, ...], BeforeValidator(_one_or_many)]
Inputs = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
