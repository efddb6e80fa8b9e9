"""What a board added to a bundle: its manifest and the members that are new, as an archive of their own.

Models are most of a bundle and stay as they are, so they do not travel back.
"""

from __future__ import annotations

from pathlib import Path

from edgert.artifact.bundle import Bundle, open_bundle, save_bundle
from edgert.artifact.bundle_zip import ZipContainer, pack
from edgert.artifact.manifest import NAME, Manifest, parse_manifest
from edgert.artifact.member import Member, check_content, member_of
from edgert.errors import ArtifactError, cause


def pack_addition(before: Path, after: Path, path: Path) -> Member:
    """Writes what one bundle has and the one before has not; returns its size and digest.

    Raises:
        ArtifactError: a bundle is damaged, or the file cannot be written.
    """
    with open_bundle(before) as old, open_bundle(after) as new:
        content = {name: new.read(name) for name in _new_members(old.manifest, new.manifest)}
        content[NAME] = new.manifest.to_bytes()
    try:
        with path.open("w+b") as file:
            pack(content, file, NAME)
        return member_of(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot write {str(path)!r}", why=cause(error), fix="free some space") from error


def add(before: Bundle, addition: Path, output: Path) -> tuple[Manifest, bool]:
    """Writes the bundle with what was added to it; returns what is in it then, and whether it had to be written.

    Raises:
        ArtifactError: the addition is damaged, or belongs to another bundle; or the bundle cannot be written.
    """
    with ZipContainer(addition) as archive:
        manifest = parse_manifest(archive.read(NAME), str(addition))
        members = {name: archive.read(name) for name in archive.sizes if name != NAME}
    for name, member in manifest.members.items():
        if name in members:
            check_content(name, members[name], member, str(addition))
        elif before.manifest.members.get(name) == member:
            members[name] = before.read(name)
        else:
            raise ArtifactError(
                "what the board sent belongs to another bundle",
                why=f"member {name!r} is not in {before.path}, or is another there",
                fix="build again",
            )
    return manifest, save_bundle(output, manifest, members)


def _new_members(old: Manifest, new: Manifest) -> list[str]:
    return [name for name, member in new.members.items() if old.members.get(name) != member]
