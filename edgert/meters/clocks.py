"""Clocks and load of a Jetson's GPU, DLA and memory controller (EMC).

Values that only root may read are unavailable to other users. GPU and, on Thor, EMC are devfreq devices
(https://docs.kernel.org/driver-api/devfreq.html), found by the name of their device tree node, which is that of the
chip: gm20b (Nano), gp10b (TX2), gv11b (Xavier), ga10b (Orin), gb10b. On Thor ``gpu-gpc-0`` computes and ``gpu-nvd-0``
decodes.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from edgert.board.host import read_text
from edgert.meters import reading

_GPUS = ("gm20b", "gp10b", "gv11b", "ga10b", "gb10b", "gpu")
_VIDEO = "gpu-nvd"
_LOADS = ("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load")  # JetPack 4 and 5; 6 and 7.2
_BPMP = "sys/kernel/debug/bpmp/debug"
_ACTIVITY = (
    "sys/kernel/debug/cactmon/mc_all",
    f"{_BPMP}/actmon/mc_all_avg_activity",
    "sys/kernel/actmon_avg_activity/mc_all",
)
_DLA_FOLDERS = (
    "sys/devices/*host1x/*.nvdla*",
    "sys/devices/platform/*host1x/*.nvdla*",
    "sys/devices/platform/bus@0/*host1x/*.nvdla*",  # JetPack 6
)
_MOST_HZ = 1e10


def activity_percent(activity: str, rate: str) -> float:
    """Return the memory controller's load in percent: mean activity over clock in kHz. Raises OSError, ValueError."""
    khz = reading.read_number(rate, 1.0, _MOST_HZ) / 1e3
    return min(100 * reading.read_number(activity, 0.0) / khz, 100.0)


def powered(path: str) -> float:
    """Return 1 while runtime power management keeps a block on, and 0 while suspended. Raises OSError, ValueError."""
    status = reading.read_small(path).strip()
    if status not in ("active", "suspended", "resuming", "suspending"):
        raise ValueError(f"it reads {status[:40]!r}")
    return float(status != "suspended")


def gpu_gauges(root: Path) -> dict[str, reading.Gauge]:
    """Return gauges of ``gpu.clock``, ``gpu.max_clock`` (the cap), ``gpu.load``, and Thor's ``gpu.video_clock``."""
    found: dict[str, reading.Gauge] = {}
    for folder in _devfreqs(root, _GPUS):
        name = "gpu.video_clock" if folder.name.startswith(_VIDEO) else "gpu.clock"
        found.setdefault(name, _hertz(folder / "cur_freq", root))
        if name == "gpu.clock":
            found.setdefault("gpu.max_clock", _hertz(folder / "max_freq", root))
    loads = [root / path for path in _LOADS if (root / path).is_file()]
    if loads:
        found["gpu.load"] = reading.file_gauge(loads[0], root, "%", 0.1, 0.0, 100.0)  # per mille
    return found


def gpu_folder(root: Path) -> Path | None:
    """Return the devfreq folder of the GPU; None if there is none."""
    folders = _devfreqs(root, _GPUS)
    return next((folder for folder in folders if not folder.name.startswith(_VIDEO)), None)


def emc_gauges(root: Path) -> dict[str, reading.Gauge]:
    """Return gauges of ``emc.clock`` and ``emc.load``, which only root may read on a Jetson before Thor."""
    thor = next((folder for folder in reading.children(root / "sys/class/devfreq") if "bwmgr" in folder.name), None)
    if thor is not None:
        return {"emc.clock": _hertz(thor / "cur_freq", root)}
    rate = root / _BPMP / "clk/emc/rate"
    activity = next((root / path for path in _ACTIVITY if _is_there(root / path)), root / _ACTIVITY[0])
    load = partial(activity_percent, str(activity), str(rate))
    source = reading.shown_path(activity, root)
    return {"emc.clock": _hertz(rate, root), "emc.load": reading.gauge("%", source, load)}


def dla_gauges(root: Path) -> dict[str, reading.Gauge]:
    """Return gauges of ``dla0.powered`` and ``dla0.clock`` for each core; no public file has the load of a core."""
    found: dict[str, reading.Gauge] = {}
    folders = {folder.name: folder for pattern in _DLA_FOLDERS for folder in root.glob(pattern)}
    for core, name in enumerate(sorted(folders, key=lambda name: name.rpartition("nvdla")[2])):
        status = folders[name] / "power/runtime_status"
        source = reading.shown_path(status, root)
        found[f"dla{core}.powered"] = reading.gauge("", source, partial(powered, str(status)))
        clocks = (f"dla{core}_core", f"nafll_dla{core}", "nafll_dla")
        paths = [root / "sys/kernel/debug/clk" / clock / "clk_rate" for clock in clocks]
        found[f"dla{core}.clock"] = _hertz(next(filter(_is_there, paths), paths[0]), root)
    return found


def cpu_gauges(root: Path) -> dict[str, reading.Gauge]:
    """Return gauges of ``cpu0.clock`` and so on for the cores whose clock cpufreq reports.

    See https://docs.kernel.org/admin-guide/pm/cpufreq.html.
    """
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    paths = sorted(folders, key=lambda path: int(path.parts[-3][3:]))
    return {f"{path.parts[-3]}.clock": reading.file_gauge(path, root, "Hz", 1e3, 0.0, _MOST_HZ) for path in paths}


def _devfreqs(root: Path, names: Iterable[str]) -> Iterator[Path]:
    for folder in reading.children(root / "sys/class/devfreq"):
        name_there = read_text(folder / "device/of_node/name") or folder.name
        if any(name in name_there or name in folder.name for name in names):
            yield folder


def _hertz(path: Path, root: Path) -> reading.Gauge:
    return reading.file_gauge(path, root, "Hz", 1.0, 0.0, _MOST_HZ)


def _is_there(path: Path) -> bool:
    """Return whether a file exists and this user may see it."""
    try:
        return path.is_file()
    except PermissionError:  # in debugfs; is_file() returns False for it only from Python 3.14 on
        return False
