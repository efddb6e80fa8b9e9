"""The commands that install what edgert can do without, and edgert itself elsewhere.

edgert is on no package index: a command names the clone or the wheel that this edgert came from, or the packages of
others that an extra stands for.
"""

from __future__ import annotations

import shlex
from importlib import metadata

from edgert.shipped import checkout


def command(extra: str) -> str:
    """The ``pip install`` line that brings an extra of ``pyproject.toml``, wherever this edgert came from."""
    root = checkout()
    if root is not None:
        return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
    return f"pip install {shlex.join(_requirements(extra))}"


def wheel(version: str) -> str:
    """The file name of the wheel that ``make wheel`` writes to ``dist/``."""
    return f"edgert-{version}-py3-none-any.whl"


def _requirements(extra: str) -> list[str]:
    """What an extra stands for, without the conditions of systems."""
    try:
        lines = metadata.requires("edgert") or []
    except metadata.PackageNotFoundError:  # a copy of the package that pip knows nothing of
        return [f"PATH-OF-EDGERT[{extra}]"]
    return [line.partition(";")[0].strip() for line in lines if line.endswith((f"'{extra}'", f'"{extra}"'))]
