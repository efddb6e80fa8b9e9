"""Parts of boxes: Debian for aarch64, an emulator that the kernel starts for its programs, and wheels."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from edgert.errors import DeviceError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a box; ``packages`` come from debootstrap, ``more`` from apt."""

    suite: str
    python: str
    machine: str
    architecture: str
    packages: tuple[str, ...]
    more: tuple[str, ...] = ("gir1.2-gst-plugins-base-1.0", "gstreamer1.0-plugins-good")
    components: str = "main"
    archive: str = ""

    @property
    def title(self) -> str:
        return f"{self.suite} for {self.machine}"


DEBIAN = Distribution(
    "bookworm", "3.11", "aarch64", "arm64", ("python3", "python3-venv", "ca-certificates", "openssh-server")
)
_HEADERS = {
    "/usr/include/gstreamer-1.0/gst/video/video.h": "libgstreamer-plugins-base1.0-dev",
    "/usr/aarch64-linux-gnu/include/stdio.h": "libc6-dev-arm64-cross",
}
_EXTRAS = "[plan,nvml]"  # those of scripts/setup-jetson
_SPACE_BYTES = 3 * 2**30
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_FORMAT = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")  # of Debian's qemu-user-static: magic, mask, flags with F
_BUILD = ("hatchling>=1.26", "hatch-fancy-pypi-readme>=24.1", "editables", "tomli")
"""What `pip install` builds with. The last is for Python 3.10 only: pip leaves it out where it runs on a later one."""
_GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)  # minor versions that wheels are for; the last is Ubuntu 22.04's
_UBUNTU_KEYS = (
    "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb",
    "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8",
)
"""Ubuntu's package of the keys that its archive is signed with, and its SHA-256: Debian has no such package."""
_KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"


def check(folder: Path, *, emulated: bool = True) -> None:
    """Raises DeviceError for what a box cannot be made without: root, an x86-64 Linux, programs, space. One whose
    programs are not ``emulated`` needs fewer of them."""
    if os.geteuid() != 0:
        raise DeviceError(
            "a box needs root", why="it mounts a file system and enters it", fix="sudo tools/board-in-a-box"
        )
    if platform.machine() != "x86_64":
        raise DeviceError(
            "boxes are for x86-64 machines",
            why=f"this one is {platform.machine()}: its own programs are not emulated, so it shows its own identity",
            fix="scripts/setup, or on a Jetson scripts/setup-jetson",
        )
    needs = {"debootstrap": "debootstrap", "unshare": "util-linux", "dpkg-deb": "dpkg", "git": "git"}
    if emulated:
        needs |= {
            "qemu-aarch64-static": "qemu-user-static",
            "ssh": "openssh-client",
            "ssh-keygen": "openssh-client",
            "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
            "pkg-config": "pkg-config",
        }
    missing = sorted(
        {
            *(package for program, package in needs.items() if shutil.which(program) is None),
            *(package for header, package in _HEADERS.items() if emulated and not Path(header).exists()),
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
            fix="make room, or name another folder: EDGERT_BOX=/folder tools/board-in-a-box",
        )


def emulator() -> str:
    """Register qemu with the kernel for aarch64 programs, until this machine restarts; return a line on it."""
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


def base(folder: Path, wanted: Distribution = DEBIAN) -> tuple[Path, str]:
    """Return the root file system that boxes share, and whether it was made now. An incomplete one is made again."""
    made = folder / wanted.suite
    if made.is_dir():
        return made, "kept from before"
    part, packages = folder / f"{wanted.suite}.part", folder / "debs"
    shutil.rmtree(part, ignore_errors=True)
    packages.mkdir(exist_ok=True)
    options = [f"--arch={wanted.architecture}", "--variant=minbase", f"--components={wanted.components}"]
    options += [f"--include={','.join(wanted.packages)}", f"--cache-dir={packages}"]
    script = []
    if wanted.archive:
        options.append(f"--keyring={_ubuntu_keyring(folder, wanted.archive)}")
        script = ["/usr/share/debootstrap/scripts/gutsy"]  # for all of Ubuntu; by name it knows only older ones
    where = wanted.archive or mirror()
    run(["debootstrap", *options, wanted.suite, str(part), where, *script], f"{wanted.title} cannot be made")
    shutil.copy("/etc/resolv.conf", part / "etc/resolv.conf")
    inside = [
        "chroot",
        str(part),
        "/usr/bin/env",
        "DEBIAN_FRONTEND=noninteractive",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *wanted.more]):
        run([*inside, "apt-get", "--quiet", *words], f"packages of {wanted.title} cannot be installed")
    part.rename(made)
    return made, "made"


def _ubuntu_keyring(folder: Path, archive: str) -> Path:
    """Return the keys of Ubuntu's archive: those of this machine, or of Ubuntu's package."""
    here, path = Path("/") / _KEYRING, folder / "keys" / _KEYRING
    if here.exists() or path.exists():
        return here if here.exists() else path
    package, digest = _UBUNTU_KEYS
    try:
        with urlopen(f"{archive}/{package}", timeout=60.0) as answer:
            content = answer.read(1 << 20)
    except OSError as error:
        fix = f"UBUNTU_MIRROR=URL names another archive; or install that package by hand: {here}"
        raise DeviceError(f"{archive}/{package} cannot be had", why=str(error), fix=fix) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise DeviceError(
            f"{archive}/{package} is another package",
            why="its SHA-256 is not the known one",
            fix="UBUNTU_MIRROR=URL names another",
        )
    file = folder / "ubuntu-keyring.deb"
    file.write_bytes(content)
    run(["dpkg-deb", "--extract", str(file), str(folder / "keys")], "Ubuntu's keys cannot be unpacked")
    return path


def mirror() -> str:
    """Return ``$MIRROR``, or the mirror of apt here. Raises DeviceError if apt has no sources."""
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


def wheels(folder: Path, wanted: Distribution = DEBIAN) -> tuple[Path, str]:
    """Return a folder with the wheels of edgert, its dependencies, and its build tools."""
    key = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + _EXTRAS.encode()).hexdigest()[:12]
    name = f"wheels-{wanted.python}-{wanted.machine}-{key}"
    made, part = folder / name, folder / f"{name}.part"
    run([str(ROOT / "scripts/wheel")], "edgert's wheel cannot be built")
    wheel = max((ROOT / "dist").glob("edgert-*.whl"), key=lambda path: path.stat().st_mtime)
    done = "dependencies kept from before"
    if not made.is_dir():
        shutil.rmtree(part, ignore_errors=True)
        target = [
            "--python-version",
            wanted.python,
            "--implementation",
            "cp",
            "--only-binary=:all:",
            "--dest",
            str(part),
        ]
        for abi in (f"cp{wanted.python.replace('.', '')}", "abi3", "none"):
            target += ["--abi", abi]
        for glibc in ("manylinux2014", *(f"manylinux_2_{minor}" for minor in _GLIBC)):
            target += ["--platform", f"{glibc}_{wanted.machine}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *target, f"{wheel}{_EXTRAS}", *_BUILD]
        run(command, f"not all dependencies are there as wheels for {wanted.machine}")
        part.rename(made)
        done = "dependencies downloaded"
    for old in made.glob("edgert-*.whl"):
        old.unlink()
    shutil.copy(wheel, made)
    return made, f"{done}, {len(list(made.glob('*.whl')))} wheels"


def run(command: list[str], what: str) -> None:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = " / ".join(done.stdout.strip().splitlines()[-4:])
        fix = "see above; mirror, index and proxy are those of this machine's apt and pip, then run this again"
        raise DeviceError(what, why=f"{Path(command[0]).name} ended with {done.returncode}: {last}", fix=fix)
