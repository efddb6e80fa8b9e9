"""Lists the names in TensorRT's Python binding of one version, for the tests of edgert/backend/tensorrt.

    python tools/trt_api.py tensorrt_rtx_bindings tests/data/trt_api/rtx-1.7.txt
    python tools/trt_api.py tensorrt_cu12_bindings-10.3.0-cp312-….whl tests/data/trt_api/10.3.txt

The first argument is an installed module, or a binding's wheel for this Python (``pip download --no-deps``). A wheel
needs no TensorRT and no GPU: to import it, gcc compiles empty libraries with the functions that it links to.

One line per class, ``Class(Base): property method() method()>Type``, without members of the base; ``>Type`` is the
class that a method returns. ``enum Name: VALUE VALUE`` for enumerations, ``def name`` for functions.
"""

import ctypes
import importlib
import inspect
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PYTHON = re.compile(r"^(_*Py|__|_ITM|_ZS|_ZNS|_ZNKS|_ZT|_Zn|_Zd|_ZGT|_Unwind)")
_RETURNS = re.compile(r"-> (?:\w+\.)*(I?[A-Z]\w+)\s*$")


def main(source: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        module = from_wheel(Path(source), Path(folder)) if source.endswith(".whl") else importlib.import_module(source)
        Path(out).write_text("\n".join([*lines(module), ""]))
    print(f"{out}: {module.__version__}")


def from_wheel(wheel: Path, folder: Path) -> Any:
    """Return the binding of a wheel, imported with empty libraries."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    binding = next(folder.glob("*_bindings/*.so"))
    for library in needed(binding):
        ctypes.CDLL(str(stand_in(folder / library, undefined(binding))), mode=ctypes.RTLD_GLOBAL)
    sys.path.insert(0, str(folder))
    return importlib.import_module(binding.parent.name)


def needed(binding: Path) -> list[str]:
    """Return the names of NVIDIA's libraries that a binding links to."""
    text = run("readelf", "-d", str(binding))
    return [name for name in re.findall(r"NEEDED.*\[(.+)\]", text) if name.startswith("libnv")]


def undefined(binding: Path) -> list[str]:
    """Return the functions that a binding takes from these libraries."""
    names = [line.split()[-1] for line in run("nm", "-D", "--undefined-only", str(binding)).splitlines()]
    return [name for name in names if "@" not in name and not _PYTHON.match(name)]


def stand_in(path: Path, functions: list[str]) -> Path:
    """Compile a library of empty functions, which are never called; return its path."""
    source = path.with_suffix(".c")
    source.write_text("\n".join(f"void {name}(void) {{}}" for name in functions))
    run("gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), str(source))
    return path


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def lines(module: Any) -> Iterator[str]:
    yield f"{module.__name__.removesuffix('_bindings')} {module.__version__}"
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if inspect.isclass(value):
            yield class_line(name, value)
        elif callable(value):
            yield f"def {name}"
        else:
            yield f"value {name}"


def class_line(name: str, kind: Any) -> str:
    if hasattr(kind, "__members__"):
        return f"enum {name}: {' '.join(sorted(kind.__members__))}"
    base = kind.__bases__[0]
    inherited = "" if base.__module__ == "builtins" or base.__name__ == "pybind11_object" else f"({base.__name__})"
    known = set(dir(base)) if inherited else set()
    members = [member for member in sorted(dir(kind)) if not member.startswith("_") and member not in known]
    return f"{name}{inherited}: {' '.join(member_text(kind, member) for member in members)}"


def member_text(kind: Any, member: str) -> str:
    """Return the text of a member, for a method with the binding's class that it returns."""
    value = inspect.getattr_static(kind, member)
    if isinstance(value, property) or not callable(getattr(kind, member)) or inspect.isclass(value):
        return member
    match = _RETURNS.search((getattr(value, "__doc__", None) or "").partition("\n")[0])
    return f"{member}()>{match[1]}" if match and match[1] != "None" else f"{member}()"


if __name__ == "__main__":
    main(*sys.argv[1:3])
