"""The user's own code: ``module:function``, or a file of operators, named in the pipeline file."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from edgert.errors import ConfigError, nearest


def load_object(spec: str, where: str, search: Path | None = None) -> object:
    """The callable that ``module:name`` names; ``name`` may be dotted, for a member of a class.

    Args:
        spec: ``package.module:function``.
        where: what asked for it, for the error.
        search: folder looked into first, normally that of the pipeline file. ``sys.path`` is the same afterwards, so
            the module must import its neighbours when it is itself imported, not later.

    Raises:
        ConfigError: a file's name, no such module or name, the module does not import, another module has its name,
            or what was found cannot be called.
    """
    module_name, _, path = checked_spec(spec, where).partition(":")
    found: object = load_module(module_name, where, search)
    for name in path.split("."):
        found = _member(found, name, spec, where)
    if not callable(found):
        raise ConfigError(f"{spec!r} cannot be called", why=f"it is a {type(found).__name__}", where=where)
    return found


def checked_spec(spec: str, where: str) -> str:
    """``module:name`` as it is. Raises ConfigError for what is not of that form."""
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise ConfigError(f"{spec!r} names no function", where=where, fix="write module:function")
    if module_name.endswith(".py"):
        module = module_name.removesuffix(".py").replace("/", ".")
        raise ConfigError(f"{module_name!r} is a file, not a module", where=where, fix=f"write {module}:{path}")
    return spec


def load_module(name: str, where: str, search: Path | None = None) -> ModuleType:
    """The module of that name; see :func:`load_object`. Raises ConfigError."""
    with _searched(search):
        _refuse_shadow(name, where, search)
        return _import(name, where, search)


@contextmanager
def _searched(folder: Path | None) -> Iterator[None]:
    """``folder`` first on the import path, and gone from it afterwards."""
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)


def _refuse_shadow(module: str, where: str, search: Path | None) -> None:
    """Python keeps one module per name: a second ``decoder.py`` would silently be the first one again."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if search is None or loaded is None:
        return
    here = importlib.machinery.PathFinder.find_spec(top, [str(search.resolve())])
    origin = getattr(getattr(loaded, "__spec__", None), "origin", None)
    if here is not None and here.origin is not None and here.origin != origin:
        raise ConfigError(
            f"module {top!r} is already another one",
            why=f"{here.origin} was asked for, but {origin or 'a built-in module'} was imported under that name",
            where=where,
            fix=f"rename {here.origin}",
        )


def _import(module: str, where: str, search: Path | None) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            looked = f"{search} and the installed packages" if search else "the installed packages"
            raise ConfigError(
                f"there is no module {missing!r}",
                why=f"looked in {looked}",
                where=where,
                fix=f"put {missing.replace('.', '/')}.py next to the pipeline file, or install the package",
            ) from error
        raise ConfigError(
            f"module {module!r} needs {missing!r}, which is not installed", where=where, fix=f"install {missing}"
        ) from error
    except Exception as error:  # a stranger's code may raise anything while it is imported; the cause is kept
        raise ConfigError(
            f"module {module!r} fails when it is imported", why=f"{type(error).__name__}: {error}", where=where
        ) from error


def _member(holder: object, name: str, spec: str, where: str) -> object:
    try:
        found: object = getattr(holder, name)
    except AttributeError as error:
        public = [known for known in dir(holder) if not known.startswith("_")]
        holder_name = getattr(holder, "__name__", type(holder).__name__)
        raise ConfigError(
            f"{spec!r} does not exist", why=f"{holder_name!r} has no {name!r}{nearest(name, public)}", where=where
        ) from error
    return found
