"""Probes of the machine itself, and of the parts that read and write video: PyAV, OpenCV, GStreamer, cameras."""

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from edgert import installation
from edgert.board import devices
from edgert.board.detect import DEVICE_TREE
from edgert.board.host import core_count, core_quota, read_text, swap_areas, system_memory
from edgert.diagnosis.probe import Evidence, Finding
from edgert.files import cache_folder, total_bytes
from edgert.meters.over_current import OverCurrent, listed
from edgert.units import format_bytes

# Probes of the machine itself: Python, board, CPU, memory, cache.

OLDEST_PYTHON = (3, 10)


def python(evidence: Evidence) -> Finding:
    """Report the interpreter."""
    place = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    detail = f"{platform.python_version()}, {sys.executable} ({place})"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", "no", detail, "edgert needs Python 3.10 or later")
    return Finding("Python", "yes", detail)


def edgert(evidence: Evidence) -> Finding:
    """Report the version and the location of edgert."""
    from edgert._version import __version__

    root = installation.checkout()
    place = f"{root} (checkout)" if root else f"{Path(__file__).resolve().parents[1]} (installed)"
    return Finding("edgert", "yes", f"{__version__}, {place}")


def board(evidence: Evidence) -> Finding:
    """Report board, L4T, JetPack and power mode."""
    here = evidence.machine
    if not here.is_jetson:
        system = f"{platform.system()} {platform.machine()}"
        runs = "" if evidence.has_gpu else "; models run on the CPU"
        return Finding("board", "optional", f"host: {system}, not a Jetson{runs}")
    release = f"L4T {here.l4t or 'unknown'}, JetPack {here.jetpack or 'unknown'}"
    if here.board is None:
        shown = (
            f"its device tree names {', '.join(here.compatible)}" if here.compatible else "its device tree is hidden"
        )
        detail = f"a Jetson that edgert does not know, {release}; {shown}"
        fix = "name it or the nearest in the environment: EDGERT_BOARD=orin-nx-16gb (edgert boards lists them)"
        shows = "" if here.compatible else "; or docker run --security-opt systempaths=unconfined ... shows its own"
        return Finding("board", "optional", detail, fix + shows)
    by = f"recognized by {here.known_by}, " if here.known_by != DEVICE_TREE else ""
    taken = f"{here.variant.name}, taken for a " if here.variant is not None else ""
    detail = f"{taken}{here.board.title} ({here.name}), {by}{release}"
    detail += f"; {here.variant.note}" if here.variant is not None else ""
    if here.board.without_edgert:
        fix = "on another machine: edgert export PIPELINE --format onnx -o models, for the TensorRT here"
        return Finding("board", "no", f"{detail}; {here.board.without_edgert}", fix)
    if here.mode_trouble:
        detail += f", power mode unknown: {here.mode_trouble}"
        return Finding("board", "optional", detail, "sudo nvpmodel -q prints the power mode, or what is wrong with it")
    if here.mode:
        known = here.board.has_mode(here.mode)
        detail += f", power mode {here.mode}" + ("" if known else " (none that edgert has clocks of)")
    if not here.l4t:
        fix = "in a container: docker run --volume /etc/nv_tegra_release:/etc/nv_tegra_release:ro ..."
        return Finding("board", "optional", detail, fix)
    return Finding("board", "yes", detail)


def cpu(evidence: Evidence) -> Finding:
    """Report the cores, and how many of them this process may use."""
    here, quota, usable = evidence.machine, core_quota(evidence.root), core_count(evidence.root)
    limit = f" (container limit {quota:g})" if quota else ""
    off = here.cores_present - here.cores
    cores = f"{here.cores} of {here.cores_present} cores on" if off else f"{here.cores} cores"
    mode = "a larger power mode switches them on: nvpmodel -p --verbose lists the modes"
    fix = mode if off and here.is_jetson else ""
    return Finding("CPU", "yes", f"{here.cpu}, {cores}, {usable} usable{limit}", fix)


_SMALL_BYTES = 9 * 2**30
_SWAP_FIX = (
    "before large models are compiled: a swap file on a disk, and no desktop (sudo systemctl isolate multi-user)"
)


def memory(evidence: Evidence) -> Finding:
    """Report total and available memory, and swap."""
    found, areas = system_memory(evidence.root), swap_areas(evidence.root)
    if not found.total_bytes:
        return Finding("memory", "optional", "unknown: this system has no /proc/meminfo")
    limit = f", container limit {format_bytes(found.limit_bytes)}" if found.limit_bytes else ""
    detail = f"{format_bytes(found.total_bytes)}, {format_bytes(found.available_bytes)} available{limit}"
    compressed = sum(size for name, size in areas.items() if "/zram" in name)
    on_disk = {name: size for name, size in areas.items() if "/zram" not in name}
    swap = [f"{format_bytes(compressed)} of zram, which is memory itself"] if compressed else []
    swap += [f"{format_bytes(size)} on {name}" for name, size in on_disk.items()]
    if swap or (evidence.root / "proc/swaps").exists():
        detail += f", swap: {' and '.join(swap) or 'none'}"
    is_small = evidence.machine.is_jetson and found.total_bytes < _SMALL_BYTES and not on_disk
    return Finding("memory", "yes", detail, _SWAP_FIX if is_small else "")


def over_current(evidence: Evidence) -> Finding:
    """Report how often a Jetson lowered its clocks since boot because it drew too much current."""
    name = "over-current"
    if not evidence.machine.is_jetson:
        return Finding(name, "optional", "not needed: not a Jetson")
    events = OverCurrent(evidence.root).since_boot()
    if not events:
        return Finding(name, "optional", "unknown: this system shows no counters (hwmon soctherm_oc)")
    if not (named := listed(events)):
        return Finding(name, "yes", f"no event since boot ({', '.join(events)})")
    uptime = read_text(evidence.root / "proc/uptime").partition(" ")[0]
    since = f"in the {float(uptime) / 3600:.1f} h since boot" if uptime.replace(".", "", 1).isdigit() else "since boot"
    detail = f"the board lowered its clocks as it drew too much, {since}: {named} events"
    fix = "watch edgert top under load; use a stronger supply or cable, or a smaller power mode"
    return Finding(name, "optional", detail, fix)


def cache(evidence: Evidence) -> Finding:
    """Report the cache of compiled engines: whether it is writable, its size, and the free space."""
    folder = cache_folder()
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        fix = "point EDGERT_CACHE at a folder that can be written"
        detail = f"{folder} cannot be written: models are prepared at each start, and build does not work"
        return Finding("cache", "optional", detail, fix)
    used_bytes = total_bytes(folder.rglob("*"))
    free_bytes = shutil.disk_usage(above).free
    return Finding("cache", "yes", f"{folder}, {format_bytes(used_bytes)} in it, {format_bytes(free_bytes)} free")


# The system clock, which gives results their time of day.

_DAEMONS = {
    "chronyd": "NTP",
    "ntpd": "NTP",
    "systemd-timesyn": "NTP",  # the kernel cuts names to 15 characters
    "phc2sys": "PTP",
    "ptp4l": "PTP",
    "timemaster": "NTP and PTP",
}
_CLOCK_FIX = "sudo timedatectl set-ntp true, or sudo apt install chrony; for PTP: sudo apt install linuxptp"
_UNSYNCHRONIZED = 5
_LONGS = 32


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's report on its clock (adjtimex(2)): whether a program sets it, and its estimated error."""

    is_set: bool
    error_ms: float


def kernel_clock() -> KernelClock | None:
    """Return the kernel's report on its clock; None where it gives none."""
    timex = (ctypes.c_long * _LONGS)()  # room for a struct timex: modes, offset, freq, maxerror, …
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return None if state < 0 else KernelClock(state != _UNSYNCHRONIZED, timex[3] / 1e3)


def time_of_day(evidence: Evidence) -> Finding:
    """Report whether NTP or PTP synchronizes the clock, by which programs, how precisely, and PTP hardware clocks."""
    running = {read_text(file) for file in evidence.root.glob("proc/[0-9]*/comm")}
    daemons = {name: kind for name, kind in _DAEMONS.items() if name in running}
    clocks = sorted(evidence.root.glob("sys/class/ptp/ptp*/clock_name"))
    hardware = [f"{file.parent.name} {read_text(file)}".strip() for file in clocks]
    return clock_finding(kernel_clock(), daemons, hardware)


def clock_finding(clock: KernelClock | None, daemons: dict[str, str], hardware: list[str]) -> Finding:
    """Return the finding on a clock, given running programs → their protocols, and the PTP clocks of adapters."""
    by = ", ".join(f"{kind} ({name})" for name, kind in daemons.items())
    more = f"; PTP hardware clocks: {', '.join(hardware)}" if hardware else ""
    if clock is None:
        return Finding("clock", "optional", f"the kernel does not say whether it is right{by and f'; {by} runs'}{more}")
    if not clock.is_set:
        why = f"though {by} runs: it has no answer yet" if by else "and no program keeps it"
        detail = f"not synchronized, {why}; results have its time of day, right or wrong{more}"
        return Finding("clock", "optional", detail, _CLOCK_FIX)
    who = f"by {by}" if by else "by the host of this container, or a program that edgert does not know"
    return Finding("clock", "yes", f"synchronized {who}, to {clock.error_ms:.3g} ms at worst{more}")


# Parts that read and write video.

OPENCV_WHEELS = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
"""Wheels that all install the folder ``cv2``: https://github.com/opencv/opencv-python#frequently-asked-questions."""

_H264_ENCODERS = ("libx264", "libopenh264")
_GSTREAMER_APT = (
    "sudo apt install python3-gi gir1.2-gstreamer-1.0 gir1.2-gst-plugins-base-1.0 gstreamer1.0-plugins-good"
)
_VENV = "and a virtual environment made with --system-site-packages"


def pyav(evidence: Evidence) -> Finding:
    """Report PyAV and its FFmpeg."""
    answer = evidence.answers["av"]
    if not answer.works:
        return Finding("PyAV", "no", answer.error or "not installed", "pip install av")
    facts = answer.facts
    ffmpeg = f"FFmpeg {facts['ffmpeg']}" if facts["ffmpeg"] else "FFmpeg"
    return Finding("PyAV", "yes", f"{facts['version']}, {ffmpeg} (libavcodec {facts['libavcodec']})")


def codecs(evidence: Evidence) -> Finding:
    """Report the codecs of PyAV's FFmpeg, and whether it can read cameras."""
    answer = evidence.answers["av"]
    if not answer.works:
        return Finding("codecs", "optional", "unknown without PyAV", "see PyAV")
    decoders, encoders = answer.facts["decoders"], answer.facts["encoders"]
    camera = "V4L2 cameras" if answer.facts["v4l2"] else "V4L2 cameras through OpenCV"
    detail = f"reads {', '.join(decoders) or 'no video'}, {camera}; writes {', '.join(encoders) or 'no video'}"
    missing = [name for name in ("h264", "hevc") if name not in decoders]
    if not any(name in encoders for name in _H264_ENCODERS):
        missing.append("an H.264 encoder")
    if missing:
        fix = "PyAV's own wheels have them: pip install --force-reinstall --only-binary av av"
        return Finding("codecs", "optional", f"{detail}; without {', '.join(missing)}", fix)
    return Finding("codecs", "yes", detail)


def _missing_elements(evidence: Evidence, *names: str) -> list[str]:
    return [name for name in names if name not in evidence.answers["gi"].facts.get("elements", ())]


def nvdec(evidence: Evidence) -> Finding:
    """Report the sources that hardware decodes, by PyNvVideoCodec or a Jetson's nvv4l2decoder."""
    answer, here, videos = evidence.answers["nvdec"], evidence.machine, "files and network streams"
    desktop = ""
    if answer.works and here.has_desktop_nvdec and evidence.has_gpu:
        desktop = f"{videos} whose frames stay on the GPU: PyNvVideoCodec {answer.facts['version']}"
    if here.is_jetson:
        absent = _missing_elements(evidence, "nvv4l2decoder", "nvvidconv", "h264parse")
        if not absent:
            videos = f"{desktop}; otherwise they" if desktop else videos
            no_mjpeg = devices.why_no_mjpeg(here.soc)
            usb = "USB cameras with format: h264" if no_mjpeg else "USB cameras with MJPEG or H.264"
            return Finding("NVDEC", "yes", f"{videos}, and {usb}: nvv4l2decoder{no_mjpeg and f'; {no_mjpeg}'}")
        detail = f"{desktop or videos + ': the CPU'}; USB cameras: the CPU; GStreamer lacks {', '.join(absent)}"
        fix = "sudo apt install gstreamer1.0-plugins-bad" if absent == ["h264parse"] else "see GStreamer"
        return Finding("NVDEC", "yes" if desktop else "optional", detail, fix)
    if desktop:
        return Finding("NVDEC", "yes", f"{desktop}; all others, and cameras: the CPU")
    if not evidence.has_gpu:
        return Finding("NVDEC", "optional", "not needed: no NVIDIA GPU here")
    if answer.error:
        fix = "install the NVIDIA driver; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        return Finding("NVDEC", "optional", answer.error, fix)
    detail = "PyNvVideoCodec is not installed; videos are decoded by the CPU"
    return Finding("NVDEC", "optional", detail, installation.command("nvdec"))


def nvenc(evidence: Evidence) -> Finding:
    """Report the encoder of ``sink: video``: PyNvVideoCodec, a Jetson's nvv4l2h264enc, or the CPU."""
    answer, here, cpu = evidence.answers["nvdec"], evidence.machine, "video is encoded by the CPU"
    if here.board is not None and here.board.encoder is not None and not here.board.encoder.engines:
        return Finding("NVENC", "optional", f"{cpu}: a {here.board.title} has no encoder")
    if here.has_desktop_nvdec and evidence.has_gpu and answer.works and not answer.facts["no_nvenc"]:
        return Finding("NVENC", "yes", f"video is encoded by PyNvVideoCodec {answer.facts['version']}")
    if here.is_jetson:
        absent = _missing_elements(evidence, "nvv4l2h264enc", "nvvidconv")
        if not absent and devices.why_no_mjpeg(here.soc):  # Thor, which has the driver and elements of a desktop GPU
            detail = f"{cpu}: a Jetson Thor's nvv4l2h264enc has other properties; PyNvVideoCodec encodes there"
            return Finding("NVENC", "optional", detail, installation.command("nvdec"))
        if not absent:
            return Finding("NVENC", "yes", "video is encoded by nvv4l2h264enc")
        return Finding("NVENC", "optional", f"{cpu}: GStreamer lacks {', '.join(absent)}", "see GStreamer")
    if not evidence.has_gpu:
        return Finding("NVENC", "optional", "not needed: no NVIDIA GPU here")
    if answer.works:
        return Finding("NVENC", "optional", f"{cpu}: {answer.facts['no_nvenc']}")
    why = answer.error or "PyNvVideoCodec is not installed"
    return Finding("NVENC", "optional", f"{cpu}, or by FFmpeg's NVENC: {why}", "see NVDEC")


def opencv(evidence: Evidence) -> Finding:
    """Report the cv2 that this Python imports; it needs no GStreamer inside."""
    answer = evidence.answers["cv2"]
    if not answer.works:
        return Finding("OpenCV", "no", answer.error or "not installed", "pip install opencv-python-headless")
    facts = answer.facts
    gstreamer = "with" if facts["gstreamer"] else "without"
    system = any(evidence.root.glob("usr/lib/python3*/dist-packages/cv2*"))  # as JetPack installs it
    hidden = "; it hides the system's own cv2" if system and "dist-packages" not in str(facts["file"]) else ""
    return Finding("OpenCV", "yes", f"{facts['version']}, {gstreamer} GStreamer inside{hidden}")


def opencv_wheels(evidence: Evidence) -> Finding:
    """Report several OpenCV wheels, which overwrite each other's files."""
    names = sorted(_installed_packages().intersection(OPENCV_WHEELS))
    if len(names) > 1:
        detail = f"{' and '.join(names)} install the same folder cv2; the last one installed is in use"
        fix = f"pip uninstall -y {' '.join(names)} && pip install opencv-python-headless"
        return Finding("OpenCV wheels", "optional", detail, fix)
    return Finding("OpenCV wheels", "yes", names[0] if names else "none: cv2 comes from the system")


def gstreamer(evidence: Evidence) -> Finding:
    """Report GStreamer through PyGObject, which a Jetson needs for CSI cameras and its hardware decoder."""
    answer, on_jetson = evidence.answers["gi"], evidence.machine.is_jetson
    if not answer.works:
        bound = any(evidence.root.glob("usr/lib/python3*/dist-packages/gi"))
        if answer.is_absent and bound:
            detail = "PyGObject is here for the system's Python, but this one does not see it"
            return Finding("GStreamer", "optional", detail, "/usr/bin/python3 -m venv --system-site-packages .venv")
        return Finding("GStreamer", "optional", answer.error or "not installed", f"{_GSTREAMER_APT}, {_VENV}")
    elements = answer.facts["elements"]
    detail = f"{answer.facts['version']}, elements: {', '.join(elements) or 'none of those looked for'}"
    csi = () if devices.why_no_csi(evidence.machine.soc, evidence.machine.l4t) else ("nvarguscamerasrc",)
    absent = [name for name in (*csi, "nvv4l2decoder") if name not in elements]
    if on_jetson and absent:
        fix = "sudo apt install nvidia-l4t-gstreamer nvidia-l4t-camera; in a container: --runtime nvidia"
        return Finding("GStreamer", "optional", f"{detail}; without {' and '.join(absent)}", fix)
    if "appsink" not in elements:
        fix = "sudo apt install gstreamer1.0-plugins-base"
        return Finding("GStreamer", "optional", f"{detail}; without appsink", fix)
    return Finding("GStreamer", "yes", detail)


def camera_devices(evidence: Evidence) -> Finding:
    """Report CSI sensors and other V4L2 devices, and whether csi:// can reach the sensors."""
    found, sensors, here = devices.cameras(evidence.root), devices.csi_sensors(evidence.root), evidence.machine
    no_csi, seen = devices.why_no_csi(here.soc, here.l4t), _camera_list(found, sensors) or "none seen"
    if no_csi and all(camera.is_readable for camera in found):
        fix = f"instead of csi://: {devices.CSI_INSTEAD}"
        return Finding("cameras", "yes" if found else "optional", f"{seen}; csi://: {no_csi}", fix)
    if here.is_jetson and not no_csi and not (evidence.root / devices.ARGUS_SOCKET).exists():
        detail = f"{seen}; no /{devices.ARGUS_SOCKET}: csi:// has no way to its cameras"
        return Finding("cameras", "optional", detail, devices.CSI_DAEMON)
    if not found and here.is_jetson:
        detail = f"{seen}; /{devices.ARGUS_SOCKET} is there, so csi://0 may work"
        return Finding("cameras", "optional", detail, "a container sees USB cameras by docker run --device /dev/video0")
    if not found:
        fix = "plug one in, or in a container: docker run --device /dev/video0 ..."
        return Finding("cameras", "optional", "none: there is no /dev/video*", fix)
    locked = [camera.path for camera in found if not camera.is_readable]
    if locked:
        detail = f"{seen}; this user may not open {', '.join(locked)}"
        return Finding("cameras", "optional", detail, "sudo usermod -aG video $USER, then log in again")
    return Finding("cameras", "yes", seen)


def display(evidence: Evidence) -> Finding:
    """Report the viewer of `sink: display`."""
    answer = evidence.answers["display"]
    facts = answer.facts
    if not facts.get("viewer"):
        why = answer.error or facts.get("why", "it could not be asked")
        return Finding("display", "optional", f"none: {why}", facts.get("fix", ""))
    why_not = "".join(f"; not {name}: {why}" for name, why in facts["refused"].items())
    return Finding("display", "yes", f"windows on {facts['place']} by {facts['viewer']}{why_not}")


def _camera_list(found: Iterable[devices.CameraDevice], sensors: Sequence[devices.CameraDevice]) -> str:
    return "; ".join(
        (f"csi://{sensors.index(camera)} at " if camera in sensors else "")
        + f"{camera.path} {camera.title}".rstrip()
        + (f" ({camera.driver})" if camera.driver else "")
        for camera in found
    )


def _installed_packages() -> set[str]:
    names = (package.metadata["Name"] for package in distributions())
    return {name.lower().replace("_", "-") for name in names if name}
