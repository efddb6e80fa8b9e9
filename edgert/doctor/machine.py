"""Probes of the machine itself: Python, board, CPU, memory, cache."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from edgert.artifact import cache_folder
from edgert.board import Machine
from edgert.board.host import core_count, core_quota
from edgert.board.memory import system_memory
from edgert.doctor.finding import Evidence, Finding
from edgert.shipped import checkout
from edgert.units import format_bytes

OLDEST_PYTHON = (3, 10)


def python(evidence: Evidence) -> Finding:
    """The interpreter."""
    place = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    detail = f"{platform.python_version()}, {sys.executable} ({place})"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", "no", detail, "edgert needs Python 3.10 or later")
    return Finding("Python", "yes", detail)


def edgert(evidence: Evidence) -> Finding:
    """This edgert and where it runs from."""
    from edgert import __version__

    root = checkout()
    place = f"{root} (checkout)" if root else f"{Path(__file__).resolve().parents[1]} (installed)"
    return Finding("edgert", "yes", f"{__version__}, {place}")


def board(evidence: Evidence) -> Finding:
    """Board, L4T, JetPack and power mode."""
    here = evidence.machine
    if not here.is_jetson:
        system = f"{platform.system()} {platform.machine()}"
        runs = "" if evidence.has_gpu else "; models run on the CPU"
        return Finding("board", "optional", f"host: {system}, not a Jetson{runs}")
    release = f"L4T {here.l4t or 'unknown'}, JetPack {here.jetpack or 'unknown'}"
    if here.board is None:
        words = ", ".join(here.compatible) or "nothing"
        detail = f"a Jetson that edgert does not know, {release}; its device tree says {words}"
        fix = "name the nearest one in the pipeline file, e.g. board: orin-nx-16gb"
        return Finding("board", "optional", detail, fix)
    detail = f"{here.board.title} ({here.name}), {release}{_power_mode(here)}"
    if here.mode_trouble:
        return Finding("board", "optional", detail, "sudo nvpmodel -q says the power mode, or what is wrong with it")
    if not here.l4t:
        fix = "in a container: docker run --volume /etc/nv_tegra_release:/etc/nv_tegra_release:ro ..."
        return Finding("board", "optional", detail, fix)
    return Finding("board", "yes", detail)


def _power_mode(here: Machine) -> str:
    if here.mode_trouble:
        return f", power mode unknown: {here.mode_trouble}"
    if not here.mode:
        return ""
    known = here.board is not None and here.board.has_mode(here.mode)
    return f", power mode {here.mode}" + ("" if known else " (none that edgert has clocks of)")


def cpu(evidence: Evidence) -> Finding:
    """Cores, and how many of them this process may use."""
    here, quota, usable = evidence.machine, core_quota(evidence.root), core_count(evidence.root)
    limit = f" (container limit {quota:g})" if quota else ""
    off = here.cores_present - here.cores
    cores = f"{here.cores} of {here.cores_present} cores on" if off else f"{here.cores} cores"
    mode = "a larger power mode switches them on: nvpmodel -p --verbose lists the modes"
    fix = mode if off and here.is_jetson else ""
    return Finding("CPU", "yes", f"{here.cpu}, {cores}, {usable} usable{limit}", fix)


def memory(evidence: Evidence) -> Finding:
    """Memory in all and to be had."""
    found = system_memory(evidence.root)
    if not found.total_bytes:
        return Finding("memory", "optional", "unknown: this system has no /proc/meminfo")
    limit = f", container limit {format_bytes(found.limit_bytes)}" if found.limit_bytes else ""
    detail = f"{format_bytes(found.total_bytes)}, {format_bytes(found.available_bytes)} available{limit}"
    return Finding("memory", "yes", detail)


def cache(evidence: Evidence) -> Finding:
    """The folder of compiled engines: may it be written, what is in it, how much room is left."""
    folder = cache_folder()
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        fix = "point EDGERT_CACHE at a folder that can be written"
        return Finding("cache", "no", f"{folder} cannot be written", fix)
    used_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free_bytes = shutil.disk_usage(above).free
    return Finding("cache", "yes", f"{folder}, {format_bytes(used_bytes)} in it, {format_bytes(free_bytes)} free")
