"""What a SOURCE is: told by its form, and what cannot be imported refused with its reason."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgert.errors import ModelError

Kind = Literal["program", "function", "savedmodel", "tflite"]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_KINDS = "a .pt2 program, module:function, a SavedModel folder or a .tflite file"


@dataclass(frozen=True, slots=True)
class Source:
    """A model of another framework.

    Attributes:
        kind: ``program`` (torch.export.save), ``function`` (returns an nn.Module and example inputs), ``savedmodel``,
            ``tflite``.
        text: the path, absolute, or ``module:function``.
    """

    kind: Kind
    text: str

    @property
    def framework(self) -> str:
        """For messages."""
        return "PyTorch" if self.kind in ("program", "function") else "TensorFlow"


def source_of(text: str) -> Source:
    """Raises ModelError: no such file, or nothing that can be imported."""
    path = Path(text)
    if not path.exists():
        if _FUNCTION.fullmatch(text):
            return Source("function", text)
        raise ModelError(f"there is no {text!r}", why="it is no file or folder", fix=f"SOURCE is {_KINDS}")
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return Source("savedmodel", str(path.absolute()))
        raise ModelError(f"folder {text!r} is no SavedModel", why="it has no saved_model.pb", fix=f"SOURCE is {_KINDS}")
    if path.suffix == ".onnx":
        raise ModelError(f"{text!r} is ONNX already", fix="edgert inspect, new, run and build take it as it is")
    if path.suffix == ".tflite" or path.read_bytes()[4:8] == b"TFL3":  # the FlatBuffers identifier of TFLite
        return Source("tflite", str(path.absolute()))
    if zipfile.is_zipfile(path):
        return _archive(path)
    raise _pickled(path) if path.suffix in (".pt", ".pth", ".pkl") else _unknown(path)


def _archive(path: Path) -> Source:
    """PyTorch's files are zips; which kind is told by their members, whatever the file is called."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] or name for name in archive.namelist()}
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return Source("program", str(path.absolute()))
    if "constants.pkl" in names:
        raise ModelError(
            f"{str(path)!r} is a TorchScript archive",
            why="PyTorch has given TorchScript up, and its exporter takes modules and exported programs",
            fix="export the module it was made from: torch.export.save(torch.export.export(module, inputs), 'm.pt2')",
        )
    raise _pickled(path) if "data.pkl" in names else _unknown(path)


def _pickled(path: Path) -> ModelError:
    return ModelError(
        f"{str(path)!r} is a pickled module or its weights",
        why="a pickle is a program: reading a module out of one runs whatever its author put there; weights alone are "
        "no model",
        fix="torch.export.save(torch.export.export(module, inputs), 'm.pt2'), or write a function that makes the "
        "module and loads its weights with torch.load(…, weights_only=True): edgert import mine:model",
    )


def _unknown(path: Path) -> ModelError:
    return ModelError(
        f"{str(path)!r} cannot be imported", why="it is of no kind that is known", fix=f"SOURCE is {_KINDS}"
    )
