"""This installation of edgert: its data files, and the commands that install optional packages.

In a checkout, boards, budgets, pipelines and their assets are beside the package, in ``configs/`` and ``pipelines/``; a
wheel has them as package data under ``edgert/data/``. edgert is on no package index, so commands name the clone, or
the packages of an extra.
"""

import os
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path

from edgert.errors import ArtifactError
from edgert.files import exists, is_file

_PACKAGE = Path(__file__).resolve().parent


def checkout() -> Path | None:
    """Return the checkout that this edgert runs from; None when it is installed."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "configs").is_dir() else None


def commit() -> str:
    """Return the first 12 digits of this edgert's commit; empty if it is unknown."""
    root = checkout()
    if root is None:
        file = data_folder("commit.txt")
        return file.read_text(encoding="ascii").strip() if file.is_file() else ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
        return done.stdout.strip()
    return ""


def python_path() -> str:
    """Return ``PYTHONPATH`` with which a Python process of the same version imports this edgert."""
    return os.pathsep.join(filter(None, (str(_PACKAGE.parent), os.environ.get("PYTHONPATH"))))


def data_folder(name: str) -> Path:
    """Return the folder ``configs`` or ``pipelines`` of this edgert."""
    return (checkout() or _PACKAGE / "data") / name


def shipped(path: str) -> Path:
    """Return a file of edgert, such as ``pipelines/hello.yaml``.

    Raises:
        ArtifactError: it is missing, so the installation is damaged.
    """
    folder, _, rest = path.partition("/")
    file = data_folder(folder) / rest
    if not file.is_file():
        raise ArtifactError(
            f"{path} is missing from this edgert",
            why=f"there is no file {file}",
            fix="install edgert again from its clone or wheel: pip install --force-reinstall --no-deps PATH",
        )
    return file


def demo_images() -> str:
    """Return the source of the demo's images: parts on a conveyor belt."""
    return f"python:{data_folder('pipelines')}/conveyor:Conveyor"


def pipeline_named(name: str) -> Path | None:
    """Return the file of a shipped pipeline, such as ``hello``; None for other names."""
    file = data_folder("pipelines") / f"{name.removesuffix('.yaml')}.yaml"
    return file if Path(name).name == name and is_file(file) else None


def pipeline_path(name: str) -> Path:
    """Return the path of a pipeline: the given one if it exists or is no shipped pipeline, else that of the latter."""
    path = Path(name)
    return path if exists(path) else pipeline_named(name) or path


def pipeline_names() -> tuple[str, ...]:
    """Return the names of the shipped pipelines."""
    return tuple(sorted(file.stem for file in data_folder("pipelines").glob("*.yaml")))


def labels_named(name: str) -> Path | None:
    """Return the file of a shipped list of class names, such as ``coco``; None for other names."""
    return data_folder("configs") / "labels" / f"{name}.txt" if name in labels_names() else None


def labels_names() -> tuple[str, ...]:
    """Return the names of the shipped lists of class names.

    - coco: 80 classes, and coco91 with them at their ids (https://cocodataset.org/#download)
    - coco17: points of a body (https://cocodataset.org/#keypoints-2020)
    - imagenet: 1000 (https://image-net.org/challenges/LSVRC/2012)
    - voc: 20, and voc21 with the background before them (http://host.robots.ox.ac.uk/pascal/VOC)
    - cityscapes: 19 (https://github.com/mcordts/cityscapesScripts)
    """
    return tuple(sorted(file.stem for file in (data_folder("configs") / "labels").glob("*.txt")))


def command(extra: str) -> str:
    """Return the ``pip install`` line for an extra of ``pyproject.toml``."""
    root = checkout()
    if root is not None:
        return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
    from importlib import metadata  # imports email, which costs every start of the command line 20 ms

    try:
        lines = metadata.requires("edgert") or []
    except metadata.PackageNotFoundError:  # a copy of the package that was not installed by pip
        return f"pip install {shlex.quote(f'PATH-OF-EDGERT[{extra}]')}"
    # Packages of the extra, without their conditions for systems.
    wanted = [line.partition(";")[0].strip() for line in lines if line.endswith((f"'{extra}'", f'"{extra}"'))]
    return f"pip install {shlex.join(wanted)}"


def version_of(package: str) -> str:
    """Return the version of a package without importing it; empty where it is not installed under this name."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def wheel(version: str) -> str:
    """Return the file name of the wheel that ``make wheel`` writes to ``dist/``."""
    return f"edgert-{version}-py3-none-any.whl"


CHECKPOINTS = (".pt", ".pth", ".ckpt")
"""Suffixes of PyTorch's files with a pickle, which could run any code and is never read."""


def export_first(path: str) -> str:
    """Return advice on exporting a file of PyTorch to ONNX."""
    yolo = f"yolo export model={shlex.quote(path)} format=onnx for a YOLO of Ultralytics"
    others = "torch.onnx.export, or edgert import module:function"
    return f"{yolo}, then edgert new on the .onnx file; for another network {others}"
