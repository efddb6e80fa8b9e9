"""Clocks and load of GPU, DLA and memory controller (EMC) of a Jetson. What only root may read is unavailable, with
that reason.

GPU and, on Thor, EMC are devfreq devices (https://docs.kernel.org/driver-api/devfreq.html), found by the name of their
device tree node. The names are those of the chips: gm20b (Nano), gp10b (TX2), gv11b (Xavier), ga10b (Orin), gb10b; on
Thor ``gpu-gpc-0`` computes and ``gpu-nvd-0`` decodes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
_DLA_FOLDERS = ("sys/devices/*host1x/*.nvdla*", "sys/devices/platform/*host1x/*.nvdla*")
_DLA_FOLDERS_6 = "sys/devices/platform/bus@0/*host1x/*.nvdla*"
_MOST_HZ = 1e10


@dataclass(frozen=True, slots=True)
class ActivityGauge:
    """Percent of its peak that the memory controller is busy: mean activity over the clock in kHz."""

    activity: str
    rate: str
    source: str

    def __call__(self) -> reading.Reading:
        try:
            khz = reading.read_number(self.rate, 1.0, _MOST_HZ) / 1e3
            percent = 100 * reading.read_number(self.activity, 0.0) / khz
        except (OSError, ValueError) as error:
            return reading.unavailable("%", self.source, reading.failure_of(error))
        return reading.measured(min(percent, 100.0), "%", self.source)


@dataclass(frozen=True, slots=True)
class PoweredGauge:
    """1 while runtime power management keeps a block on, 0 while it is suspended; not how busy it is."""

    path: str
    source: str

    def __call__(self) -> reading.Reading:
        try:
            status = reading.read_small(self.path).strip()
        except OSError as error:
            return reading.unavailable("", self.source, reading.failure_of(error))
        if status not in ("active", "suspended", "resuming", "suspending"):
            return reading.unavailable("", self.source, f"it reads {status[:40]!r}")
        return reading.measured(float(status != "suspended"), "", self.source)


def gpu_gauges(root: Path) -> dict[str, reading.Gauge]:
    """``gpu.clock``, ``gpu.max_clock`` (the cap), ``gpu.load``; Thor's ``gpu.video_clock``."""
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
    """The devfreq device that computes; None where there is none."""
    folders = _devfreqs(root, _GPUS)
    return next((folder for folder in folders if not folder.name.startswith(_VIDEO)), None)


def emc_gauges(root: Path) -> dict[str, reading.Gauge]:
    """``emc.clock`` and ``emc.load``. Of a Jetson older than Thor only root may read them."""
    thor = next((folder for folder in reading.children(root / "sys/class/devfreq") if "bwmgr" in folder.name), None)
    if thor is not None:
        return {"emc.clock": _hertz(thor / "cur_freq", root)}
    rate = root / _BPMP / "clk/emc/rate"
    activity = next((root / path for path in _ACTIVITY if _is_there(root / path)), root / _ACTIVITY[0])
    load = ActivityGauge(str(activity), str(rate), reading.shown_path(activity, root))
    return {"emc.clock": _hertz(rate, root), "emc.load": load}


def dla_gauges(root: Path) -> dict[str, reading.Gauge]:
    """``dla0.powered`` and ``dla0.clock`` of each core; how busy a core is, no public file shows."""
    found: dict[str, reading.Gauge] = {}
    for core, folder in enumerate(_dla_folders(root)):
        status = folder / "power/runtime_status"
        found[f"dla{core}.powered"] = PoweredGauge(str(status), reading.shown_path(status, root))
        found[f"dla{core}.clock"] = _dla_clock(root, core)
    return found


def cpu_gauges(root: Path) -> dict[str, reading.Gauge]:
    """``cpu0.clock`` … of the cores whose clock cpufreq reports (https://docs.kernel.org/admin-guide/pm/cpufreq.html)."""
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    paths = sorted(folders, key=lambda path: int(path.parts[-3][3:]))
    return {f"{path.parts[-3]}.clock": reading.file_gauge(path, root, "Hz", 1e3, 0.0, _MOST_HZ) for path in paths}


def _dla_clock(root: Path, core: int) -> reading.Gauge:
    known = (f"dla{core}_core", f"nafll_dla{core}", "nafll_dla")
    paths = [root / "sys/kernel/debug/clk" / name / "clk_rate" for name in known]
    return _hertz(next(filter(_is_there, paths), paths[0]), root)


def _dla_folders(root: Path) -> list[Path]:
    patterns = (*_DLA_FOLDERS, _DLA_FOLDERS_6)
    found = {folder.name: folder for pattern in patterns for folder in root.glob(pattern)}
    return [folder for _, folder in sorted(found.items(), key=lambda pair: pair[0].rpartition("nvdla")[2])]


def _devfreqs(root: Path, names: Iterable[str]) -> Iterator[Path]:
    for folder in reading.children(root / "sys/class/devfreq"):
        told_name = read_text(folder / "device/of_node/name") or folder.name
        if any(name in told_name or name in folder.name for name in names):
            yield folder


def _hertz(path: Path, root: Path) -> reading.FileGauge:
    return reading.file_gauge(path, root, "Hz", 1.0, 0.0, _MOST_HZ)


def _is_there(path: Path) -> bool:
    """Whether a file exists and this user may know it."""
    try:
        return path.is_file()
    except PermissionError:  # debugfs, where Python before 3.14 does not take this for a no
        return False
