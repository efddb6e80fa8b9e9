"""User code: ``module:name`` of a pipeline file, imported, or read as text without running it."""

import ast
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from edgert.errors import ConfigError, EdgertError, nearest, raised_as
from edgert.files import exists
from edgert.installation import data_folder


@dataclass(frozen=True, slots=True)
class CodeName:
    """Location of user code: a module, and a name in it.

    Attributes:
        module: dotted name of the module.
        member: name in the module; dotted for a member of a class.
        folder: folder that is searched before the installed packages; None: only these are searched.
    """

    module: str
    member: str
    folder: Path | None

    @property
    def top(self) -> str:
        """Top-level package or module."""
        return self.module.partition(".")[0]

    @property
    def files(self) -> tuple[Path, ...]:
        """Source files of the module or its package; empty for an installed one."""
        if self.folder is None:
            return ()
        package = self.folder / self.top
        found = sorted(package.rglob("*.py")) if package.is_dir() else [self.folder / f"{self.top}.py"]
        return tuple(path for path in found if path.is_file())

    def digest(self) -> str:
        """Return the SHA-256 of the names and contents of its files, independent of their folder."""
        found = hashlib.sha256(f"{self.module}:{self.member}\0".encode())
        for path in self.files:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(self.folder or path)}\0{content}\n".encode())
        return found.hexdigest()

    def __str__(self) -> str:
        return f"{f'{self.folder}/' if self.folder else ''}{self.module}:{self.member}"


def code_name(spec: str, where: str, search: Path | None = None) -> CodeName:
    """Split ``[FOLDER/]module:name`` into its parts.

    Args:
        spec: text to split.
        where: place of the text, for the error.
        search: folder of the pipeline file, in which a relative FOLDER is searched before the current folder.

    Raises:
        ConfigError: the text has another form, or names a file.
    """
    module, _, member = spec.partition(":")
    if not module or not member:
        raise ConfigError(f"{spec!r} names no function", where=where, fix="write module:function")
    if module.endswith(".py"):
        written = module.removesuffix(".py")
        raise ConfigError(f"{module!r} is a file, not a module", where=where, fix=f"write {written}:{member}")
    folder, slash, name = module.rpartition("/")
    if not slash:
        return CodeName(name, member, search)
    there = (search or Path.cwd()) / Path(folder or "/").expanduser()
    return CodeName(name, member, there if exists(there) else Path(folder).absolute())


def load_object(spec: str, where: str, search: Path | None = None) -> Any:
    """Return the callable of ``[FOLDER/]module:name``; ``name`` may be dotted, for a member of a class.

    ``sys.path`` is the same afterwards, so the module must import its neighbors at its top level. Arguments are those
    of :func:`code_name`.

    Raises:
        ConfigError: the text has another form, the module or name does not exist, importing fails, another module has
            the name, or the object cannot be called.
    """
    code = code_name(spec, where, search)
    found: object = load_module(code.module, where, code.folder)
    for name in code.member.split("."):
        if not hasattr(found, name):
            hint = nearest(name, [known for known in dir(found) if not known.startswith("_")])
            why = f"{getattr(found, '__name__', type(found).__name__)!r} has no {name!r}{hint}"
            raise ConfigError(f"{spec!r} does not exist", why=why, where=where)
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(f"{spec!r} cannot be called", why=f"its type is {type(found).__name__}", where=where)
    return found


def _allow_import(name: str, where: str) -> None:
    """Allow any import, as programs that use the API choose their files."""


before_import: Callable[[str, str], None] = _allow_import
"""Function called with a module's name and place in the file before its code runs; it may raise a ConfigError. The
command line shows the names, and refuses them with ``--no-code``."""


def _is_shipped(name: str, search: Path | None) -> bool:
    """Return whether a module belongs to edgert's shipped pipelines, such as the images of the demo."""
    is_own = search is not None and search.resolve() == data_folder("pipelines").resolve()
    return is_own and bool(CodeName(name, "", search).files)


def load_module(name: str, where: str, search: Path | None = None) -> ModuleType:
    """Return the imported module of that name; see :func:`load_object`. Raises ConfigError."""
    if name.partition(".")[0] != "edgert" and not _is_shipped(name, search):
        before_import(name, where)
    with _search_first(search):
        _refuse_shadow(name, where, search)
        try:
            module = importlib.import_module(name)
            _own_folders.update(str(Path(file).parent) for file in filter(None, [getattr(module, "__file__", None)]))
            return module
        except ModuleNotFoundError as error:
            missing = error.name or name
            if name == missing or name.startswith(f"{missing}."):
                raise _no_module(missing, where, search) from error
            what = f"module {name!r} needs {missing!r}, which is not installed"
            raise ConfigError(what, where=where, fix=f"install {missing}") from error
        except Exception as error:  # user code may raise anything while it is imported
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"module {name!r} fails when it is imported", why=why, where=where) from error


@contextmanager
def _search_first(folder: Path | None) -> Iterator[None]:
    """Put ``folder`` first on the import path during the block."""
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
    """Raise ConfigError for a second module of one name, such as ``decoder.py``, as Python would use the first."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if search is None or loaded is None:
        return
    here = PathFinder.find_spec(top, [str(search.resolve())])
    origin = getattr(getattr(loaded, "__spec__", None), "origin", None)
    if here is None or here.origin is None or here.origin == origin:
        return
    is_copy = False  # whether the same text was imported from elsewhere, such as a bundle
    if origin is not None and origin.endswith(".py"):
        home = Path(origin).parents[Path(origin).name == "__init__.py"]
        is_copy = CodeName(top, "", search).digest() == CodeName(top, "", home).digest()
    if not is_copy:
        raise ConfigError(
            f"a module {top!r} is loaded already",
            why=f"{here.origin} was requested, but {origin or 'a built-in module'} was imported under that name",
            where=where,
            fix=f"rename {here.origin}",
        )


def _no_module(name: str, where: str, search: Path | None) -> ConfigError:
    looked = f"looked in {f'{search} and ' if search else ''}the installed packages"
    fix = f"put {name.replace('.', '/')}.py next to the pipeline file, or install the package"
    return ConfigError(f"there is no module {name!r}", why=looked, where=where, fix=fix)


def check_object(spec: str, where: str, search: Path | None) -> None:
    """Check that the source of a module binds ``name`` at its top level; modules without source pass.

    Arguments are those of :func:`code_name`.

    Raises:
        ConfigError: the module or name does not exist, or the source does not parse.
    """
    code = code_name(spec, where, search)
    module = code.module
    text = _source(module, where, code.folder)
    tree = None if text is None else _parse(text, module, where)
    name = code.member.partition(".")[0]
    if tree is None:
        return
    names = set(_bound_names(tree))
    stars = (item.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for item in node.names)
    is_open = "*" in stars or "__getattr__" in names  # names may come from elsewhere
    if not is_open and name not in names:
        why = f"{module!r} has no {name!r}{nearest(name, names)}"
        raise ConfigError(f"{spec!r} does not exist", why=why, where=where)


def registered_operators(file: Path, where: str) -> frozenset[str] | None:
    """Return ``domain::Name`` of the operators that a file registers with :func:`edgert.op`; None for computed names.

    Raises:
        ConfigError: the file cannot be read, or does not parse.
    """
    tree = _parse(read_operators(file, where), file.stem, where)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    named = [call.args[0] for call in calls if "op" in (getattr(call.func, "attr", ""), getattr(call.func, "id", ""))]
    written = [name.value for name in named if isinstance(name, ast.Constant) and isinstance(name.value, str)]
    return frozenset(written) if len(written) == len(named) else None


def read_operators(file: Path, where: str) -> bytes:
    """Return the source of a file of operators. Raises ConfigError where it cannot be read."""
    fix = "ops: [FILE.py], beside the pipeline"
    with raised_as(ConfigError, f"cannot read {str(file)!r}", where=where, fix=fix):
        return file.read_bytes()


def _source(module: str, where: str, search: Path | None) -> bytes | None:
    """Return the source of a module without importing its package; None for one without source, such as in C."""
    top, *rest = module.split(".")
    beside = None if search is None else PathFinder.find_spec(top, [str(search.resolve())])
    found = beside or importlib.util.find_spec(top)
    for name in rest:
        if found is None:
            break
        found = PathFinder.find_spec(f"{found.name}.{name}", found.submodule_search_locations)
    if found is None:
        raise _no_module(module, where, search)
    is_text = found.has_location and str(found.origin).endswith(".py")
    return Path(str(found.origin)).read_bytes() if is_text else None


def _parse(text: bytes, module: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two where it is nested deeply
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"module {module!r} does not parse", why=why, where=where) from error


def _bound_names(module: ast.Module) -> Iterator[str]:
    """Yield the names that a module's statements bind, including those under ``if`` and ``try``."""
    pending: list[ast.AST] = [*module.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((item.asname or item.name).partition(".")[0] for item in node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        pending.extend(ast.iter_child_nodes(node))


# Places in user code that runs or failed.

_own_folders = set[str]()
"""Folders of loaded user modules, which may be among the installed packages."""


@contextmanager
def constructor_errors(what: str, where: str, fix: str = "") -> Iterator[None]:
    """Raise ConfigError for what a constructor of the user raises in the block, which may be anything.

    Args:
        what: subject and verb of the error.
        where: place of the user's code in the pipeline file.
        fix: fix of the error.
    """
    try:
        yield
    except EdgertError:
        raise
    except Exception as error:
        at = place_of(error)
        why = f"{type(error).__name__}: {error}{at and f', at {at}'}"
        raise ConfigError(what, why=why, where=where, fix=fix) from error


def place_of(error: BaseException) -> str:
    """Return ``file:line in function`` of the user code that raised an error; empty if other code raised it."""
    steps = [*traceback.walk_tb(error.__traceback__)]
    return next((_format_place(frame, line) for frame, line in reversed(steps) if _is_own(frame)), "")


def place_in(frame: FrameType | None) -> str:
    """Return the place of user code in a thread's current frame; empty outside of it. See ``sys._current_frames``."""
    return next((_format_place(one, line) for one, line in traceback.walk_stack(frame) if _is_own(one)), "")


def _format_place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"


def _is_own(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if not file.endswith(".py"):  # it is compiled from a string
        return False
    return str(Path(file).parent) in _own_folders or not file.startswith(_foreign_folders())


@lru_cache(maxsize=1)
def _foreign_folders() -> tuple[str, ...]:
    """Return the folders of edgert, Python and installed packages."""
    import sysconfig  # only failures and hangs need it

    paths = sysconfig.get_paths()
    found = [str(Path(__file__).parent), *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))]
    return tuple(f"{folder}/" for folder in found)
