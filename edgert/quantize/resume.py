"""Files from which an interrupted job goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgert.errors import CalibrationError, cause


def read_unfinished(path: Path, kind: str, holds: str) -> Mapping[str, Any]:
    """What such a file says.

    Args:
        kind: what it calls itself under ``format``.
        holds: what it should hold, for the error: ``"measurements"``.

    Raises:
        CalibrationError: it is another kind of file, damaged, or cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"cannot read {str(path)!r}", why=cause(error), fix="name another file") from error
    except ValueError as error:
        raise foreign(path, holds, str(error)) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise foreign(path, holds, f"it does not say {kind!r}")
    return content


def foreign(path: Path, holds: str, why: str) -> CalibrationError:
    """The error for a file that holds something else."""
    return CalibrationError(
        f"{str(path)!r} holds no {holds} to go on with", why=why, fix="remove it, or name another file"
    )
