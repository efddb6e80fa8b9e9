"""Files of the control group that this process is in, which a container or a service manager set limits in."""

from __future__ import annotations

from pathlib import Path

from edgert.board.host import read_text

_V2, _V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def memory_file(root: Path, v2: str, v1: str) -> Path | None:
    """The file of this process's own group (v2, then v1), or, as containers see it, of the root; None without.

    Args:
        root: where the files of a Linux are.
        v2, v1: its name in the two versions of control groups.
    """
    entries = (line.split(":", 2) for line in read_text(root / "proc/self/cgroup").splitlines())
    groups = {entry[1]: entry[2].lstrip("/") for entry in entries if len(entry) == 3}
    places = [root / _V2 / groups.get("", "") / v2, root / _V2 / v2]
    places += [root / _V1 / groups.get("memory", "") / v1, root / _V1 / v1]
    return next((path for path in places if path.is_file()), None)
