"""Table of model families, ``configs/families.yaml``: how each one is fed and read, and how to recognize one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from edgert.installation import shipped
from edgert.yaml_nodes import LOADER


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models.

    Attributes:
        name: common name of the family.
        reads: decoders of its outputs, as ``detect: yolov8``, the usual one first.
        input: input settings of its authors' code.
        source: address of that code or its description.
        export: command of its own tools that writes the ONNX file; empty where there is no single command.
        metadata: key of the file's metadata → text that the value must contain; all keys must match.
        tasks: value of the metadata's ``task`` → the decoder.
        final: options of ``detect: yolov10`` for exports that end in final boxes.
        producer: beginning of the exporter's name in the file.
        takes: possible names of the image input; any name where empty.
        gives: texts that must occur in the names of the outputs, which are joined in lower case by spaces.
        size: usual width and height, where both are dynamic.
        lengths: possible numbers of elements of its single output; any number where empty.
        results: possible numbers of outputs, where only the outputs show the family; any number where empty.
        by_file: whether only the metadata can show the family, never the outputs.
    """

    name: str
    reads: tuple[str, ...]
    input: Mapping[str, str | int | float | tuple[float, ...]]
    source: str
    export: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    final: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    lengths: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    by_file: bool = False


_TABLE = LOADER(shipped("configs/families.yaml").read_text("utf-8")).get_single_data()
_ROWS = TypeAdapter(tuple[Family, ...])
FAMILIES = _ROWS.validate_python(_TABLE["families"])
PLACEMENT_FAMILIES = _ROWS.validate_python(_TABLE["placement"])
"""Kinds of models whose images are usually placed in one way, by all publishers."""
