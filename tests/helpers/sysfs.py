"""Trees of small files as Jetsons show them, made from tables.

Paths and rail names: NVIDIA's Jetson Linux Developer Guide and the kernel's hwmon documentation; volts and amperes are
ours, chosen so that they multiply to the watts of ``tegrastats`` lines that users published of these boards.
"""

from dataclasses import dataclass
from pathlib import Path

GPU_HZ, STEPS_HZ = 612_000_000, (306_000_000, 612_000_000, 918_000_000)


@dataclass(frozen=True)
class Sensor:
    """A power sensor: kind (``ina3221``, ``ina238``, ``iio``), its place, and rail → (mV, mA), in channel order."""

    kind: str
    place: str
    rails: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Tree:
    """A board: device tree words, release, sensors, GPU devfreq name, GPU load file, DLA folder, zones in degrees."""

    compatible: str
    release: str
    sensors: tuple[Sensor, ...]
    gpu: str
    load: str
    dla: str
    zones: tuple[tuple[str, float], ...]
    watts: float
    meminfo: str = ""


_XAVIER_ZONES = (("AO-therm", 37.5), ("GPU-therm", 43.0), ("PMIC-Die", 100.0), ("CPU-therm", 43.5))
_OLD_ZONES = (("CPU-therm", 47.9), ("GPU-therm", 45.9), ("CV0-therm", -256.0), ("tj-therm", 48.9))
_NEW_ZONES = (("cpu-thermal", 53.0), ("gpu-thermal", 47.8), ("soc0-thermal", 48.8), ("tj-thermal", 53.1))
_ORIN_NX = Sensor("ina3221", "1-0040", (("VDD_IN", 5000, 1060), ("VDD_CPU_GPU_CV", 5000, 155), ("VDD_SOC", 5000, 285)))
_AGX = Sensor(
    "ina3221", "1-0040", (("VDD_GPU_SOC", 20000, 160), ("VDD_CPU_CV", 20000, 220), ("VIN_SYS_5V0", 5000, 953))
)
_AGX_2 = Sensor("ina3221", "1-0041", (("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 5000, 141), ("NC", 0, 0)))
_HOST1X_5 = "sys/devices/platform/13e40000.host1x"
_HOST1X_6 = "sys/devices/platform/bus@0/13e00000.host1x"
_LOAD_5, _LOAD_6 = "sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load"

_ORIN_5 = ("17000000.ga10b:ga10b", _LOAD_5, _HOST1X_5, _OLD_ZONES)
_ORIN_6 = ("17000000.gpu:gpu", _LOAD_6, _HOST1X_6, _NEW_ZONES)
_NVMAP = "NvMapMemUsed:     524288 kB\n"

TREES = {
    "nano": Tree(
        "nvidia,p3450-0000\0nvidia,jetson-nano\0nvidia,tegra210",
        "# R32 (release), REVISION: 7.6",
        (Sensor("iio", "6-0040", (("POM_5V_IN", 5000, 204), ("POM_5V_GPU", 5000, 0), ("POM_5V_CPU", 5000, 41))),),
        "57000000.gpu:gm20b",
        _LOAD_5,
        "",
        (("AO-therm", 39.5), ("CPU-therm", 36.5), ("PMIC-Die", 100.0)),
        1.02,
    ),
    "xavier-nx": Tree(
        "nvidia,p3509-0000+p3668-0001\0nvidia,tegra194",
        "# R32 (release), REVISION: 7.1",
        (Sensor("iio", "7-0040", (("VDD_IN", 5000, 813), ("VDD_CPU_GPU_CV", 5000, 148), ("VDD_SOC", 5000, 271))),),
        "17000000.gv11b:gv11b",
        _LOAD_5,
        "sys/devices/13e10000.host1x",
        _XAVIER_ZONES,
        4.065,
    ),
    "agx-xavier": Tree(
        "nvidia,p2972-0000\0nvidia,jetson-xavier\0nvidia,tegra194",
        "# R35 (release), REVISION: 4.1",
        (
            Sensor("ina3221", "1-0040", (("GPU", 19000, 0), ("CPU", 19000, 16), ("SOC", 19000, 49))),
            Sensor("ina3221", "1-0041", (("CV", 19000, 0), ("VDDRQ", 19000, 33), ("SYS5V", 5000, 296))),
        ),
        "17000000.gv11b:gv11b",
        _LOAD_5,
        _HOST1X_5,
        _XAVIER_ZONES,
        3.342,
    ),
    "orin-nano": Tree(
        "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234",
        "# R36 (release), REVISION: 5.0",
        (_ORIN_NX,),
        "17000000.gpu:gpu",
        _LOAD_6,
        "",
        _NEW_ZONES,
        5.3,
        _NVMAP,
    ),
    "orin-nx-jp5": Tree(
        "nvidia,p3768-0000+p3767-0000\0nvidia,tegra234", "# R35 (release), REVISION: 4.1", (_ORIN_NX,), *_ORIN_5, 5.3
    ),
    "orin-nx-jp6": Tree(
        "nvidia,p3768-0000+p3767-0000\0nvidia,tegra234", "# R36 (release), REVISION: 4.3", (_ORIN_NX,), *_ORIN_6, 5.3
    ),
    "agx-orin-jp5": Tree(
        "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234",
        "# R35 (release), REVISION: 4.1",
        (_AGX, _AGX_2),
        *_ORIN_5,
        12.365,
    ),
    "agx-orin-jp6": Tree(
        "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234",
        "# R36 (release), REVISION: 4.3",
        (_AGX, _AGX_2),
        *_ORIN_6,
        12.365,
        _NVMAP,
    ),
    "agx-orin-jp7": Tree(
        "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234", "# R39 (release), REVISION: 2.0", (_AGX,), *_ORIN_6, 12.365
    ),
    "thor": Tree(
        "nvidia,p4071-0000+p3834-0008\0nvidia,tegra264",
        "# R38 (release), REVISION: 4.0",
        (
            Sensor("ina238", "2-0044", (("VIN", 20000, 989),)),
            Sensor(
                "ina3221",
                "2-0040",
                (("VDD_GPU", 20000, 98), ("VDD_CPU_SOC_MSS", 20000, 294), ("VIN_SYS_5V0", 5000, 1127)),
            ),
        ),
        "gpu-gpc-0:gb10b",
        "",
        "",
        (("cpu", 37.3), ("gpu", 38.9), ("soc012", 37.5), ("tj", 38.9)),
        19.78,
    ),
}


def write(root: Path, path: str, text: object) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
    return file


def plant(root: Path, name: str) -> Tree:
    """Makes the tree of a board; hwmon numbers start anywhere, as they do."""
    tree = TREES[name]
    write(root, "proc/device-tree/compatible", tree.compatible + "\0")
    write(root, "etc/nv_tegra_release", tree.release)
    write(root, "proc/meminfo", f"MemTotal:    8000000 kB\nMemAvailable: 4000000 kB\n{tree.meminfo}".rstrip())
    for number, sensor in enumerate(tree.sensors, 3):
        {"ina3221": _ina3221, "ina238": _ina238, "iio": _iio}[sensor.kind](root, sensor, number)
    _gpu(root, tree)
    for core in range(2 if tree.dla else 0):
        write(root, f"{tree.dla}/158{'8c'[core]}0000.nvdla{core}/power/runtime_status", ("active", "suspended")[core])
    for number, (kind, degrees) in enumerate(tree.zones):
        write(root, f"sys/class/thermal/thermal_zone{number}/type", kind)
        write(root, f"sys/class/thermal/thermal_zone{number}/temp", round(degrees * 1e3))
    zone = f"sys/class/thermal/thermal_zone{len(tree.zones) - 1}"
    write(root, f"{zone}/trip_point_0_type", "passive")
    write(root, f"{zone}/trip_point_0_temp", 99000)
    write(root, "sys/class/thermal/cooling_device0/type", "pwm-fan")
    write(root, "sys/class/thermal/cooling_device0/cur_state", 3)
    write(root, "sys/class/thermal/cooling_device1/type", "cpu-throttle-alert")
    write(root, "sys/class/thermal/cooling_device1/cur_state", 0)
    return tree


def hwmon(root: Path, number: int, name: str) -> str:
    folder = f"sys/class/hwmon/hwmon{number}"
    write(root, f"{folder}/name", name)
    return folder


def over_current(root: Path, number: int, *counts: int) -> None:
    """The driver that counts over-current events: of oc1, oc2 and oc3, since boot."""
    folder = hwmon(root, number, "soctherm_oc")
    for limit, count in enumerate(counts, 1):
        write(root, f"{folder}/oc{limit}_event_cnt", count)
        write(root, f"{folder}/oc{limit}_throt_en", 1)


def _ina3221(root: Path, sensor: Sensor, number: int) -> None:
    folder = hwmon(root, number, "ina3221")
    place = root / "sys/bus/i2c/devices" / sensor.place
    place.mkdir(parents=True, exist_ok=True)
    (root / folder / "device").symlink_to(place)
    for channel, (rail, millivolts, milliamperes) in enumerate(sensor.rails, 1):
        write(root, f"{folder}/in{channel}_label", rail)
        write(root, f"{folder}/in{channel}_input", millivolts)
        write(root, f"{folder}/curr{channel}_input", milliamperes)
        write(root, f"{folder}/curr{channel}_crit_alarm", 0)
    write(root, f"{folder}/in7_label", "sum of shunt voltages")


def _ina238(root: Path, sensor: Sensor, number: int) -> None:
    folder = hwmon(root, number, "ina238")
    rail, millivolts, milliamperes = sensor.rails[0]
    write(root, f"{folder}/label", rail)
    write(root, f"{folder}/power1_input", millivolts * milliamperes)


def _iio(root: Path, sensor: Sensor, number: int) -> None:
    folder = f"sys/bus/i2c/drivers/ina3221x/{sensor.place}/iio:device{number}"
    for channel, (rail, millivolts, milliamperes) in enumerate(sensor.rails):
        write(root, f"{folder}/rail_name_{channel}", rail)
        write(root, f"{folder}/in_power{channel}_input", millivolts * milliamperes // 1000)


def _gpu(root: Path, tree: Tree) -> None:
    name, _, node = tree.gpu.partition(":")
    folder = f"sys/class/devfreq/{name}"
    write(root, f"{folder}/device/of_node/name", node)
    write(root, f"{folder}/cur_freq", GPU_HZ)
    write(root, f"{folder}/max_freq", STEPS_HZ[-1])
    write(root, f"{folder}/available_frequencies", " ".join(map(str, STEPS_HZ)))
    if tree.load:
        write(root, tree.load, 431)
    else:
        write(root, "sys/class/devfreq/gpu-nvd-0/cur_freq", 1_692_000_000)
        write(root, "sys/class/devfreq/bwmgr/cur_freq", 2_750_000_000)
