"""Small copies of what Linux shows of a Jetson."""

from pathlib import Path

ORIN_NX = ("nvidia,p3768-0000+p3767-0000-super", "nvidia,p3767-0000", "nvidia,tegra234")
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC"
ARM_CORE = "processor\t: {n}\nBogoMIPS\t: 62.50\nCPU implementer\t: {maker}\nCPU part\t: {part}\n\n"


def write(root: Path, path: str, text: str) -> None:
    """Writes one file of the tree."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def jetson(
    root: Path,
    compatible: tuple[str, ...] = ORIN_NX,
    memory_mib: int = 15388,
    release: str = RELEASE,
    cores: str = "0-7",
    present: str = "0-7",
) -> Path:
    """An Orin NX 16GB with Super firmware unless told otherwise."""
    write(root, "proc/device-tree/compatible", "".join(f"{word}\0" for word in compatible))
    write(root, "proc/device-tree/model", "NVIDIA Jetson Orin NX Engineering Reference Developer Kit\0")
    write(root, "proc/meminfo", f"MemTotal:       {memory_mib * 1024} kB\nMemAvailable:   {memory_mib * 512} kB\n")
    write(root, "proc/cpuinfo", "".join(ARM_CORE.format(n=n, maker="0x41", part="0xd42") for n in range(8)))
    write(root, "sys/devices/system/cpu/online", f"{cores}\n")
    write(root, "sys/devices/system/cpu/present", f"{present}\n")
    if release:
        write(root, "etc/nv_tegra_release", release + "\n# KERNEL_VARIANT: oot\n")
    return root


def nvpmodel_conf(names: tuple[str, ...], default: int = 0) -> str:
    """A file of power modes numbered from 0, in the format of ``nvpmodel``, with a little of what it also holds."""
    head = "# POWER_MODEL and PM_CONFIG are explained here\n< PARAM TYPE=FILE NAME=CPU_ONLINE >\nCORE_1 /sys/cpu1\n\n"
    modes = "".join(
        f"# {name}\n< POWER_MODEL ID={number} NAME={name} >\nCPU_ONLINE CORE_1 1\nGPU MAX_FREQ -1\n\n"
        for number, name in enumerate(names)
    )
    return f"{head}{modes}< PM_CONFIG DEFAULT={default} >\n< FAN_CONFIG DEFAULT=quiet >\n"


def nvpmodel(root: Path, names: tuple[str, ...], current: int | None = 0, default: int = 0) -> Path:
    """Adds power modes; ``current`` is the number of the one that is set, None where none ever was."""
    write(root, "etc/nvpmodel.conf", nvpmodel_conf(names, default))
    if current is not None:
        write(root, "var/lib/nvpmodel/status", f"pmode:{current:04d} fmode:quiet\n")
    return root
