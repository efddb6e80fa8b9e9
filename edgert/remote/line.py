"""Lines of JSON: how workstation and board talk over a connection that a login shell may write on, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO


def write_line(out: BinaryIO, content: Mapping[str, Any]) -> None:
    """Writes one line, at once."""
    out.write(json.dumps(content).encode("ascii") + b"\n")
    out.flush()


def read_line(line: bytes) -> dict[str, Any] | None:
    """The line's content; None for a line that is none of ours, such as what a ``.bashrc`` prints."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
