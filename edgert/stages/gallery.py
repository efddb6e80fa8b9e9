"""Named vectors in a file, with which a model's vectors are compared."""

import io
import json
import logging
import threading
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert import limits
from edgert.array_file import read_array
from edgert.errors import ConfigError, cause
from edgert.files import replace_bytes

log = logging.getLogger("edgert.gallery")
F32 = npt.NDArray[np.float32]
_POLL_S = 1.0
"""Seconds between two checks of the file for changes."""
_FIX = "create it again with edgert.Gallery, or restore a copy"
_BYTES = {".npz": limits.GALLERY_BYTES, ".json": limits.GALLERY_JSON_BYTES}
_DIRECTORY_BYTES = 1 << 16
"""Limit of an archive's directory. A gallery has two members; each entry takes ten times its bytes in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """Content of a file: (N,) names, (N, D) vectors of length 1, and the file's version."""

    names: tuple[str, ...]
    vectors: F32
    version: tuple[int, ...]


class Gallery:
    """Named vectors in a file, ``.npz`` or ``.json``; a name may have several.

    A pipeline with ``match: FILE`` in its task reads changes within a second, in its own process or another. A
    ``.npz`` holds ``names`` (N,), text, and ``vectors`` (N, D) float32; a ``.json`` {NAME: [[...], ...], ...}. Files
    are replaced atomically. Only one process may add to a file at a time.

    Args:
        path: path of the file, which may not exist before the first vector is added.

    Raises ConfigError: the file is not a gallery, or its name has another suffix.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix not in (".npz", ".json"):
            why = "a gallery is a .npz or .json file"
            raise ConfigError(f"{self.path} is not a gallery", why=why, where=str(self.path))
        self._writing = threading.Lock()
        self._content = _read(self.path) if self.path.exists() else _Content((), np.zeros((0, 0), np.float32), ())
        self._checked_s, self._refused = time.monotonic(), ""

    def __len__(self) -> int:
        return len(self._content.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vectors, in their order."""
        return self._content.names

    def check(self, length: int) -> None:
        """Raise ConfigError unless vectors of ``length`` numbers can be compared with those in the gallery."""
        self._reload(at_once=True)
        if not len(self):
            why = "it has no vector, so nothing could be recognized" if self.path.exists() else "it does not exist"
            fix = "edgert gallery PIPELINE --add NAME --images PHOTOS"
            raise ConfigError(f"the gallery {self.path} is empty", why=why, fix=fix)
        stored = self._content.vectors.shape[1]
        if stored != length:
            raise ConfigError(
                f"the gallery {self.path} is of another model",
                why=f"its vectors have {stored} numbers, and the model writes {length}",
                fix="create the gallery with the model of this pipeline",
            )

    def add(self, name: str, vector: npt.ArrayLike) -> None:
        """Add a vector and write the file.

        Args:
            name: name of the object; it may have several vectors.
            vector: (D,) numbers, not all 0.

        Raises:
            ConfigError: the name is empty, or the vector's length is not that of the others. Nothing is written then.
            ArtifactError: the file cannot be written.
        """
        one = np.asarray(vector, np.float32)
        if not name or one.ndim != 1:
            why = f"expected a name and a vector (D,), not shape {one.shape}"
            raise ConfigError("cannot add this vector to a gallery", why=why)
        with self._writing:
            self._reload(at_once=True)
            if len(self):
                self.check(len(one))
            vectors = np.concatenate([self._content.vectors.reshape(-1, len(one)), one[None]])
            self._write((*self._content.names, name), _unit(vectors, str(self.path)))

    def remove(self, name: str) -> int:
        """Remove all vectors of a name and write the file; return their number. Raises what :meth:`add` does."""
        with self._writing:
            self._reload(at_once=True)
            kept = [index for index, other in enumerate(self.names) if other != name]
            gone = len(self) - len(kept)
            if gone:
                self._write(tuple(self.names[index] for index in kept), self._content.vectors[kept])
            return gone

    def match(self, vector: F32) -> tuple[str, float]:
        """Return the name of the vector with the highest cosine, and that cosine; ``""`` and 0 without vectors."""
        self._reload()
        stored = self._content
        if not stored.names or stored.vectors.shape[1] != len(vector):
            return "", 0.0
        cosines = np.einsum("nd,d->n", stored.vectors, vector)  # einsum works in this thread; BLAS would wake others
        best = int(cosines.argmax())
        length = float(np.linalg.norm(vector))
        return stored.names[best], float(cosines[best]) / length if length > 0 else 0.0

    def _reload(self, at_once: bool = False) -> None:
        """Read the file again if it has changed. On an error the old content stays, and the error is logged once."""
        now = time.monotonic()
        if not at_once and now - self._checked_s < _POLL_S:
            return
        self._checked_s = now
        if _version(self.path) == self._content.version:
            return
        try:
            self._content, self._refused = _read(self.path), ""
        except ConfigError as error:
            if at_once and self.path.exists():
                raise
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("%s; the vectors that were read before stay in use", error)

    def _write(self, names: tuple[str, ...], vectors: F32) -> None:
        if self.path.suffix == ".json":
            rows: dict[str, list[list[float]]] = {}
            for name, vector in zip(names, vectors.tolist(), strict=True):
                rows.setdefault(name, []).append(vector)
            content = json.dumps(rows).encode()
        else:
            memory = io.BytesIO()
            np.savez(memory, names=np.array(names, np.str_), vectors=vectors)
            content = memory.getvalue()
        if len(content) > _BYTES[self.path.suffix] or vectors.nbytes > limits.GALLERY_BYTES:
            raise ConfigError(
                f"the gallery {self.path} would be too large",
                why=f"the limit of a gallery is {_BYTES[self.path.suffix] >> 20} MiB",
                fix="remove vectors that are not needed" + ("" if self.path.suffix == ".npz" else ", or use a .npz"),
            )
        replace_bytes(self.path, content)
        self._content = _read(self.path) if names else _Content(names, vectors, _version(self.path))


@lru_cache(maxsize=64)
def gallery_at(path: Path) -> Gallery:
    """Return the gallery of a file, shared by all callers. Raises what :class:`Gallery` does."""
    return Gallery(path)


def _version(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> _Content:
    """Read a file. Raises ConfigError if it is not a gallery; pickles are never loaded."""
    version = _version(path)
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        if (size := path.stat().st_size) > _BYTES[path.suffix]:
            raise ValueError(f"it has {size >> 20} MiB, and the limit is {_BYTES[path.suffix] >> 20} MiB")
        content = path.read_bytes()
        names, vectors = _from_json(json.loads(content)) if path.suffix == ".json" else _from_arrays(content)
        for name in names:
            name.encode()  # raises for a lone surrogate, which no output can write
        return _Content(names, _unit(vectors.astype(np.float32, copy=False), str(path)), version)
    except ConfigError:
        raise
    except Exception as error:  # the readers of zip, NumPy and JSON raise many kinds of errors for damaged files
        raise ConfigError(f"cannot read the gallery {path}", why=cause(error), fix=_FIX) from error


def _from_json(data: Any) -> tuple[tuple[str, ...], npt.NDArray[Any]]:
    """Return names and vectors of JSON data. Raises ValueError for other data."""
    if not isinstance(data, Mapping) or not all(isinstance(rows, list) for rows in data.values()):
        raise ValueError("it is not {NAME: [[number, ...], ...]}")
    pairs = [(name, row) for name, rows in data.items() for row in rows]
    return tuple(name for name, _ in pairs), np.array([row for _, row in pairs], np.float32).reshape(len(pairs), -1)


def _from_arrays(content: bytes) -> tuple[tuple[str, ...], npt.NDArray[Any]]:
    """Return names and vectors of an archive. Raises ValueError, or zipfile's errors, for other content."""
    end = content.rfind(b"PK\5\6")
    if end < 0 or int.from_bytes(content[end + 12 : end + 16], "little") > _DIRECTORY_BYTES:
        raise ValueError("it is not a .npz of names and vectors")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        vectors = _array(archive, "vectors")
        names = _array(archive, "names")
    if names.dtype.kind != "U" or vectors.ndim != 2 or names.shape != vectors.shape[:1]:
        raise ValueError(f"names {list(names.shape)} of {names.dtype} for vectors {list(vectors.shape)}")
    if vectors.dtype.kind not in "fiu" or 4 * vectors.size > limits.GALLERY_BYTES or len(names) > limits.GALLERY_NAMES:
        raise ValueError(f"its vectors are {list(vectors.shape)} of {vectors.dtype}")
    return tuple(map(str, names.tolist())), vectors


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """Return an array of an archive. Raises ValueError where its header does not match its bytes."""
    with archive.open(f"{name}.npy") as member:
        return read_array(member.read(limits.GALLERY_BYTES + 1), limits.GALLERY_BYTES)


def _unit(vectors: F32, where: str) -> F32:
    """Return the rows scaled to length 1. Raises ConfigError for a row of zeros, or with NaN or infinity."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        why = "it is all 0, or has NaN or infinite numbers"
        raise ConfigError("a vector of a gallery has no direction", why=why, where=where, fix=_FIX)
    rows: F32 = vectors / lengths
    return rows
