"""How a job ended: what is to be fetched, or the error it ended with."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from edgert.artifact.member import Member
from edgert.compiler.build import Stopped
from edgert.errors import ArtifactError, BuildError, EdgertError
from edgert.remote.link import told_there

_FULL_BYTES = 4 * 2**20
"""Space below which a build that failed is taken to have failed for it."""
_AGAIN = "build again: finished steps are kept"


def is_abandoned(end: Mapping[str, Any]) -> bool:
    """Whether nobody made anything: it was cancelled, or its process was ended from outside."""
    return bool(end["cancelled"]) or end["code"] is None


def result_of(end: Mapping[str, Any], error: Mapping[str, Any], address: str) -> Member:
    """What is to be fetched.

    Args:
        end: as ``edgert job follow`` tells it.
        error: what the compiler told of; empty if nothing.

    Raises:
        EdgertError: the one that the compiler, or the packing of its result, ended with.
        Stopped: it was cancelled.
        ArtifactError: the board's disk is full.
        BuildError: it crashed, or its process is gone.
    """
    if "result" in end:
        return Member(**end["result"])
    raise _error(end, error, address)


def _error(end: Mapping[str, Any], error: Mapping[str, Any], address: str) -> EdgertError:
    code, log = end["code"], end["log"]
    if end["cancelled"]:
        return Stopped("the build was stopped", where=address, fix="run it again: finished steps are kept")
    if told := end.get("error") or error:
        return told_there(address, told)
    if end["free_bytes"] < _FULL_BYTES:
        return ArtifactError(
            f"the disk of {address} is full",
            why=f"{end['free_bytes']} bytes are free; the build ended with: {log or 'nothing'}",
            where=address,
            fix="free some space there, or point EDGERT_CACHE at another disk",
        )
    if code is None:
        why = "its process is gone without a word: it was killed, or the board was restarted"
        return BuildError(f"the build on {address} broke off", why=_with(why, log), where=address, fix=_AGAIN)
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"failed with exit code {code}"
    return BuildError(f"edgert {how} on {address}", why=log or "it said nothing", where=address, fix=_AGAIN)


def _with(why: str, log: str) -> str:
    return f"{why}; its log ends with:\n{log}" if log else why
