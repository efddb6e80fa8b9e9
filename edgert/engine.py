"""One model by itself: ``edgert.load_engine("m.onnx")(array)``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend import Engine, EngineOptions, Session, Shapes, Tensor, backend
from edgert.board.host import core_count
from edgert.errors import ModelError, nearest
from edgert.files import FileStore, cache_folder
from edgert.graph import Model, load

Array = npt.NDArray[Any]


class LoadedEngine:
    """A compiled model that can be called from any thread; each thread has bound tensors of its own.

    ``engine(array)`` copies the input in and the outputs out, so that they belong to the caller. For a loop that
    copies nothing, write into :meth:`session`'s ``inputs`` and call its ``run``.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine, self.path = engine, path
        self._local = threading.local()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the inputs."""
        return self._engine.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the outputs."""
        return self._engine.outputs

    @property
    def info(self) -> Mapping[str, Any]:
        """Backend, threads, whether it came from the cache."""
        return self._engine.info

    def session(self, profile: str | None = None) -> Session:
        """Bound tensors of the caller's own, for one thread at a time."""
        return self._engine.session(profile)

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Array | tuple[Array, ...]:
        """Runs the model once.

        Args:
            arrays: the inputs in the model's order.
            named: inputs by name.

        Returns:
            The output, or a tuple of all outputs in the model's order; arrays of the caller's own.

        Raises:
            ModelError: an input is missing, unknown, or has another shape or dtype.
        """
        if not hasattr(self._local, "session"):
            self._local.session = self._engine.session()
        session: Session = self._local.session
        given = {**dict(zip((tensor.name for tensor in self.inputs), arrays, strict=False)), **named}
        self._check_names(given, len(arrays))
        for name, value in given.items():
            self._fill(session.inputs[name], name, np.asarray(value))
        outputs = tuple(array.copy() for array in session.run())
        return outputs[0] if len(outputs) == 1 else outputs

    def close(self) -> None:
        """Frees the engine; it must not be called any more."""
        self._engine.close()

    def __enter__(self) -> LoadedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_names(self, given: Mapping[str, object], positional: int) -> None:
        names = [tensor.name for tensor in self.inputs]
        takes = f"inputs: {', '.join(f'{t.name} {list(t.shape)} {t.dtype}' for t in self.inputs)}"
        if positional > len(names):
            raise ModelError(f"{positional} inputs for a model of {len(names)}", where=str(self.path), fix=takes)
        for name in given:
            if name not in names:
                raise ModelError(f"no input {name!r}{nearest(name, names)}", where=str(self.path), fix=takes)
        if missing := [name for name in names if name not in given]:
            raise ModelError(f"input {missing[0]!r} is missing", where=str(self.path), fix=takes)

    def _fill(self, bound: Array, name: str, value: Array) -> None:
        if value.shape != bound.shape or value.dtype != bound.dtype:
            raise ModelError(
                f"input {name!r} got {value.dtype} {list(value.shape)}",
                why=f"the model takes {bound.dtype} {list(bound.shape)}",
                where=str(self.path),
                fix=f"array.astype(np.{bound.dtype}), and reshape or resize it",
            )
        bound[...] = value


def load_engine(
    path: str | Path,
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    backend_name: str = "auto",
    cache: bool = True,
) -> LoadedEngine:
    """Compiles an ONNX model for this machine.

    Args:
        path: the ONNX file.
        shapes: input name → shape, for a model with dynamic dimensions.
        threads: CPU threads; all available cores by default.
        backend_name: ``auto`` or one of :data:`edgert.kinds.BACKENDS`.
        cache: keep the compiled engine on disk for the next time.

    Raises:
        ModelError: no such file, not ONNX, or dimensions left open.
        BuildError: the backend refuses the model.
    """
    return load_model(load(path), shapes=shapes, threads=threads, backend_name=backend_name, cache=cache)


def load_model(
    model: Model,
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    backend_name: str = "auto",
    cache: bool = True,
) -> LoadedEngine:
    """The same for a model that is in memory already. Raises ModelError or BuildError."""
    store = FileStore(cache_folder() / "ort") if cache else None
    profiles = {"default": dict(shapes)} if shapes else {}
    options = EngineOptions(threads or core_count(), profiles, store=store)
    return LoadedEngine(backend(backend_name).compile(model, options), model.path)
