"""Labels that are told by a list or by where a picture lies: classes, identities, masks."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgert.errors import ConfigError, cause, nearest
from edgert.stages.source.images import SUFFIXES

_SHOWN = 5
_HEADERS = ("file", "label_index"), ("file", "label")


def read_list(path: Path, labels: Sequence[str]) -> dict[str, int]:
    """Picture file → class index, from CSV with the header ``file,label_index`` or ``file,label``.

    Raises:
        ConfigError: another header, no rows, or a row that cannot be meant; its line is named.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(reader.line_num, row) for reader in [csv.reader(file)] for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read {path}", why=cause(error)) from error
    header = tuple(cell.strip().lower() for cell in rows[0][1]) if rows else ()
    if header[:2] not in _HEADERS:
        raise ConfigError(
            f"{path} is not a list of labelled pictures",
            why=f"its first line is {','.join(header) or 'missing'}",
            where=f"{path}:1",
            fix="begin with file,label_index (numbers) or file,label (names)",
        )
    found = {}
    for line, row in rows[1:]:
        where = f"{path}:{line}"
        if len(row) < 2 or not row[0].strip():
            raise ConfigError(f"line {line} of {path} names no picture and label", where=where)
        found[row[0].strip()] = class_index(row[1].strip(), labels, header[1] == "label_index", where)
    if not found:
        raise ConfigError(f"{path} lists no picture", where=str(path))
    return found


def class_index(text: str, labels: Sequence[str], is_number: bool, where: str) -> int:
    """The class that a number or a name means. Raises ConfigError."""
    if is_number:
        if not text.isdecimal() or (labels and int(text) >= len(labels)):
            most = f"0 to {len(labels) - 1}" if labels else "a whole number from 0"
            raise ConfigError(f"{text!r} is no class index", why=f"expected {most}", where=where)
        return int(text)
    if text not in labels:
        known = f"the model's labels begin {', '.join(labels[:_SHOWN])}" if labels else "the model's labels are unknown"
        fix = "" if labels else "give the task labels: names.txt, or write class indices"
        raise ConfigError(f"no class {text!r}{nearest(text, labels)}", why=known, where=where, fix=fix)
    return labels.index(text)


def class_folders(folder: Path) -> dict[str, str]:
    """Picture, relative to the folder → the folder in it that it lies in. Empty where there are no such folders."""
    found = {}
    for inside in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in inside.rglob("*"):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                found[path.relative_to(folder).as_posix()] = inside.name
    return found


def folder_classes(folders: Sequence[str], labels: Sequence[str], where: str) -> tuple[dict[str, int], str]:
    """Folder name → class index, and how that was found out: by label, by number, or in order of their names.

    Raises:
        ConfigError: labels are known and a folder is none of them.
    """
    names = sorted(set(folders))
    if all(name.isdecimal() for name in names):
        indices = {name: class_index(name, labels, True, where) for name in names}
        return indices, "folder names are taken for class indices"
    if labels:
        return {name: class_index(name, labels, False, f"{where}/{name}") for name in names}, "folders are labels"
    return {name: n for n, name in enumerate(names)}, "folders are counted off in the order of their names"


def masks_of(folder: Path) -> Mapping[str, Path]:
    """Picture, relative to ``images`` → mask of the same stem in ``masks``.

    Raises:
        ConfigError: pictures without a mask: all of them counted, the first ones named.
    """
    images, masks = folder / "images", folder / "masks"
    known = {path.stem: path for path in masks.iterdir() if path.suffix.lower() == ".png"}
    pictures = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    missing = [path.name for path in pictures if path.stem not in known]
    if missing or not pictures:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ConfigError(
            f"{len(missing)} of {len(pictures)} pictures in {images} have no mask"
            if pictures
            else f"{images} holds no picture",
            why=f"no PNG of the same stem in {masks}: {', '.join(missing[:_SHOWN])}{more}" if missing else "",
            fix="give every picture a mask, or remove it",
        )
    return {path.name: known[path.stem] for path in pictures}
