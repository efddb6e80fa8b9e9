"""What boxes are made of: Debian for aarch64, an emulator that the kernel starts for its programs, and wheels."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from edgert.errors import DeviceError

SUITE, PYTHON = "bookworm", "3.11"
ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("python3", "python3-venv", "ca-certificates", "openssh-server")
_MORE = ("gir1.2-gst-plugins-base-1.0", "gstreamer1.0-plugins-good")  # the large ones of what setup-jetson installs
_HEADERS = {
    "/usr/include/gstreamer-1.0/gst/video/video.h": "libgstreamer-plugins-base1.0-dev",
    "/usr/aarch64-linux-gnu/include/stdio.h": "libc6-dev-arm64-cross",
}
_SPACE_BYTES = 3 * 2**30
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_FORMAT = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")  # of Debian's qemu-user-static: magic, mask, flags with F
_BUILD = ("hatchling>=1.26", "hatch-fancy-pypi-readme>=24.1", "editables")  # what `pip install -e` builds with
_PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28, 31, 34, 35)))


def check(folder: Path) -> None:
    """Raises DeviceError for what a box cannot be made without: root, an x86-64 Linux, programs, space."""
    if os.geteuid() != 0:
        raise DeviceError(
            "a box needs root", why="it mounts a file system and enters it", fix="sudo scripts/board-in-a-box"
        )
    if platform.machine() != "x86_64":
        raise DeviceError(
            "boxes are for x86-64 machines",
            why=f"this one is {platform.machine()}: its own programs are not emulated, so it shows its own identity",
            fix="scripts/setup, or on a Jetson scripts/setup-jetson",
        )
    needs = {"debootstrap": "debootstrap", "qemu-aarch64-static": "qemu-user-static", "unshare": "util-linux"}
    needs |= {
        "ssh": "openssh-client",
        "ssh-keygen": "openssh-client",
        "dpkg-deb": "dpkg",
        "git": "git",
        "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
        "pkg-config": "pkg-config",
    }
    missing = sorted(
        {
            *(package for program, package in needs.items() if shutil.which(program) is None),
            *(package for header, package in _HEADERS.items() if not Path(header).exists()),
        }
    )
    if missing:
        raise DeviceError(
            f"{', '.join(missing)} not found", why="boxes are made with it", fix=f"apt install {' '.join(missing)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < _SPACE_BYTES:
        raise DeviceError(
            f"{folder} has {free_bytes / 2**30:.1f} GiB free",
            why="a box with its packages takes about 2 GiB, and 3 while it is made",
            fix="make room, or name another folder: EDGERT_BOX=/folder scripts/board-in-a-box",
        )


def emulator() -> str:
    """Lets the kernel start aarch64 programs by qemu, until this machine restarts; says what it did.

    Raises:
        DeviceError: the kernel has no ``binfmt_misc``, or does not take the format.
    """
    if (_BINFMT / "qemu-aarch64").exists():
        return "registered already"
    try:
        if not (_BINFMT / "register").exists():
            subprocess.run(["mount", "-t", "binfmt_misc", "none", str(_BINFMT)], check=True, capture_output=True)
        (_BINFMT / "register").write_text(_FORMAT.read_text())
    except (OSError, subprocess.CalledProcessError) as error:
        raise DeviceError(
            "the kernel does not start aarch64 programs",
            why=f"qemu cannot be registered with binfmt_misc: {error}",
            fix="modprobe binfmt_misc, or on a container's host: apt install qemu-user-static binfmt-support",
        ) from error
    return "registered with binfmt_misc until this machine restarts"


def base(folder: Path) -> tuple[Path, str]:
    """The root file system that all boxes share, and whether it was made. One that was interrupted is made anew.

    Raises:
        DeviceError: it cannot be had; the last lines of debootstrap are in it.
    """
    made = folder / SUITE
    if made.is_dir():
        return made, "kept from before"
    part, packages = folder / f"{SUITE}.part", folder / "debs"
    shutil.rmtree(part, ignore_errors=True)
    packages.mkdir(exist_ok=True)
    options = ["--arch=arm64", "--variant=minbase", f"--include={','.join(_PACKAGES)}", f"--cache-dir={packages}"]
    run(["debootstrap", *options, SUITE, str(part), mirror()], "Debian for aarch64 cannot be made")
    shutil.copy("/etc/resolv.conf", part / "etc/resolv.conf")
    inside = [
        "chroot",
        str(part),
        "/usr/bin/env",
        "DEBIAN_FRONTEND=noninteractive",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *_MORE]):
        run([*inside, "apt-get", "--quiet", *words], "GStreamer for aarch64 cannot be installed")
    part.rename(made)
    return made, "made"


def mirror() -> str:
    """``$MIRROR``, or the mirror that apt uses here. Raises DeviceError where apt has no sources."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    sites = subprocess.run(command, check=False, capture_output=True, text=True).stdout.split()
    found = [os.environ.get("MIRROR", ""), *(site for site in sites if site.endswith("/debian"))]
    if not any(found):
        raise DeviceError(
            "apt names no mirror of Debian",
            why="debootstrap takes the one that apt uses",
            fix="apt-get update; or MIRROR=URL, one that has arm64",
        )
    return next(filter(None, found))


def wheels(folder: Path) -> tuple[Path, str]:
    """A folder with edgert's wheel, all it depends on for aarch64, and what builds an editable install.

    Raises:
        DeviceError: one of them is not there as a wheel, or there is no network.
    """
    key = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    made, part = folder / f"wheels-{key}", folder / "wheels.part"
    run([str(ROOT / "scripts/wheel")], "edgert's wheel cannot be built")
    wheel = max((ROOT / "dist").glob("edgert-*.whl"), key=lambda path: path.stat().st_mtime)
    done = "dependencies kept from before"
    if not made.is_dir():
        shutil.rmtree(part, ignore_errors=True)
        target = ["--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:", "--dest", str(part)]
        for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none"):
            target += ["--abi", abi]
        for name in _PLATFORMS:
            target += ["--platform", name]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *target, f"{wheel}[plan]", *_BUILD]
        run(command, "not all dependencies are there as wheels for aarch64")
        part.rename(made)
        done = "dependencies downloaded"
    for old in made.glob("edgert-*.whl"):
        old.unlink()
    shutil.copy(wheel, made)
    return made, f"{done}, {len(list(made.glob('*.whl')))} wheels"


def run(command: list[str], what: str) -> None:
    """Runs a program. Raises DeviceError with its last lines."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = " / ".join(done.stdout.strip().splitlines()[-4:])
        fix = "see above; mirror, index and proxy are those of this machine's apt and pip, then run this again"
        raise DeviceError(what, why=f"{Path(command[0]).name} ended with {done.returncode}: {last}", fix=fix)
