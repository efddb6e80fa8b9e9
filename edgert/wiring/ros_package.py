"""A ROS 2 package around a pipeline: five files that colcon builds."""

import re
from pathlib import Path
from string import Template

from edgert.errors import ConfigError
from edgert.files import replace_text
from edgert.installation import shipped
from edgert.yaml_nodes import LOADER

_NAME = re.compile(r"[a-z](_?[a-z0-9])*")


def write_package(name: str, folder: Path) -> list[Path]:
    """Write a package to ``folder/name`` and return the paths of its files.

    Raises ConfigError: ROS 2 does not allow the name, or the folder exists. Raises ArtifactError: a file cannot be
    written.
    """
    if not _NAME.fullmatch(name):
        why = "a name has lower-case letters, digits and single _, and begins with a letter"
        raise ConfigError(f"{name!r} cannot be the name of a package", why=why, fix="such as --ros2 dock_camera")
    made = folder / name
    if made.exists():
        raise ConfigError(f"{made} exists", fix="give another name, or remove it")
    template = Template(shipped("configs/ros2_package.yaml").read_text(encoding="utf-8"))
    texts = LOADER(template.substitute(name=name)).get_single_data()
    for path, text in texts.items():
        replace_text(made / path, text)
    return [made / path for path in texts]
