"""A package of somebody else's, as an installer leaves it: its module, and its entry points beside it."""

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, code: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Put a distribution of one module into a folder of ``sys.path``, with entry points: group → name → object."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name.replace('-', '_')}.py").write_text(code)
    facts = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [line for group, points in entry_points.items() for line in (f"[{group}]", *_lines(points))]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _lines(points: Mapping[str, str]) -> list[str]:
    return [f"{name} = {target}" for name, target in points.items()]
