"""A bundle as one file: a zip with uncompressed members that ends with the digest of the rest.

Equal members give equal bytes: they are sorted, without times, owners or compression. The archive's comment, which ends
the file, is ``edgert-bundle 1 sha256:`` and the SHA-256 of everything before it. So every damage is noticed, even in
headers, which zip itself does not protect. The digest is no signature.
"""

import hashlib
import io
import re
import stat
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgert import limits
from edgert.errors import ArtifactError, raised_as
from edgert.files import digest_of
from edgert.installation import CHECKPOINTS, export_first


def damage_error(where: str, why: str) -> ArtifactError:
    """Return the error of a bundle that is not as it was written."""
    return ArtifactError(f"{where} is damaged", why=why, fix="build the bundle again, or copy it again", code="E601")


# Members of a bundle: their allowed names, and their checksums.

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10))})
"""Names of devices on Windows, with any suffix: https://learn.microsoft.com/windows/win32/fileio/naming-a-file."""


@dataclass(frozen=True, slots=True)
class Member:
    """Size of a member, and the SHA-256 of its bytes in hex."""

    size_bytes: int
    sha256: str


def member_of(content: bytes) -> Member:
    """Return the size and digest of a member's content."""
    return Member(len(content), hashlib.sha256(content).hexdigest())


def check_content(path: str, content: bytes, member: Member, where: str) -> None:
    """Raise ArtifactError if a member's content does not have its recorded size and digest."""
    if member_of(content) != member:
        count = f"its {len(content)} bytes are not the {member.size_bytes} bytes it was made with"
        raise damage_error(where, f"member {path!r}: {count}")


def check_paths(paths: Iterable[str], where: str = "") -> None:
    """Check that every system can store members under their paths in one folder.

    Raises:
        ArtifactError: a path is absolute, leaves the folder, is empty, too long, or has other characters than letters,
            digits, ``_ . -``. Or it appears twice, differs from another only in case, or is also the folder of another.
    """
    seen: dict[str, str] = {}
    for path in paths:
        if len(path) > limits.MEMBER_PATH:
            raise _path_error(f"{path[:40]}…", f"it has {len(path)} characters, {limits.MEMBER_PATH} at most", where)
        for part in path.split("/"):
            if not _PART.fullmatch(part) or part.endswith(".") or part.split(".")[0].lower() in _RESERVED:
                raise _path_error(path, "it is no plain path below the bundle's own folder", where)
        folded = path.lower()
        if folded in seen:
            raise _path_error(path, f"another member is called {seen[folded]!r}", where)
        seen[folded] = path
    for folded, path in seen.items():
        above = folded.rpartition("/")[0]
        while above:
            if above in seen:
                raise _path_error(path, f"{seen[above]!r} is a file, not a folder", where)
            above = above.rpartition("/")[0]


def _path_error(path: str, why: str, where: str) -> ArtifactError:
    return ArtifactError(
        f"the bundle has a member {path!r}",
        why=why,
        where=where,
        fix="do not use this bundle: edgert does not write such members",
    )


FORMAT = 1
"""Version of the container."""

_COMMENT = re.compile(rb"edgert-bundle (\d+) sha256:([0-9a-f]{64})")
_LABEL = b"edgert-bundle %d sha256:" % FORMAT
_COMMENT_BYTES = len(_LABEL) + 64
_END_BYTES = 22
"""Length of the end record without its comment; APPNOTE.TXT 4.3.16, https://pkware.cachefly.net/webdocs/APPNOTE."""
_TIME = (1980, 1, 1, 0, 0, 0)


def pack(members: Mapping[str, bytes], file: BinaryIO, first: str = "") -> None:
    """Write an archive into an empty file that can be read back; equal members give equal bytes.

    Args:
        members: path → content.
        file: file that receives the archive.
        first: path of the first member; the others follow by name.

    Raises:
        ArtifactError: the path of a member is not allowed.
    """
    check_paths(members)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(members, key=lambda path: (path != first, path)):
            info = zipfile.ZipInfo(path, _TIME)
            info.create_system = 3  # Unix, wherever it is made
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, members[path])
        archive.comment = _LABEL + b"0" * 64
    body_bytes = file.seek(-_COMMENT_BYTES, io.SEEK_END)
    file.seek(0)
    digest = digest_of(file, body_bytes)
    file.write(_LABEL + digest.encode())


class ZipContainer(AbstractContextManager["ZipContainer"]):
    """A verified archive, open for reading; a context manager.

    Args:
        path: path of the file, for messages if ``file`` is given.
        file: the open file, which is closed with the archive; None: it is opened.

    Raises:
        ArtifactError: it cannot be read, is no bundle, is incomplete, damaged, of a later format, or has content that
            edgert does not write: links, compressed, encrypted or overlapping members, or paths that leave the folder.
    """

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self.path = path
        with raised_as(ArtifactError, f"cannot read {str(path)!r}"):
            self._file = file or path.open("rb")
        try:
            self._size_bytes = self._file.seek(0, io.SEEK_END)
            check_digest(self._file, self._size_bytes, str(path))
            self._archive = zipfile.ZipFile(self._file)
            infos = self._archive.infolist()
            _check_members(infos, self._size_bytes, str(path))
            self._infos = {info.filename: info for info in infos}
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            self._file.close()
            raise damage_error(str(path), str(error)) from error
        except ArtifactError:
            self._file.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._archive.close()
        self._file.close()

    @property
    def sizes(self) -> Mapping[str, int]:
        """Member → size in bytes."""
        return {path: info.file_size for path, info in self._infos.items()}

    def read(self, path: str) -> bytes:
        """Return a member's content. Raises ArtifactError if it is damaged."""
        try:
            return self._archive.read(self._infos[path])
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
            raise damage_error(str(self.path), f"member {path!r}: {error}") from error


def _check_members(infos: list[zipfile.ZipInfo], size_bytes: int, where: str) -> None:
    """Raise ArtifactError for members that edgert never writes."""
    if len(infos) > limits.BUNDLE_MEMBERS:
        raise _foreign_error(where, f"it has {len(infos)} members, {limits.BUNDLE_MEMBERS} at most")
    check_paths((info.filename for info in infos), where)
    for info in infos:
        oddities = {
            "is no plain file": stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG),
            "is compressed": info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size,
            "is encrypted": bool(info.flag_bits & 1),
        }
        if why := next((oddity for oddity, is_so in oddities.items() if is_so), ""):
            raise _foreign_error(where, f"member {info.filename!r} {why}")
    if sum(info.file_size for info in infos) > size_bytes:
        raise _foreign_error(where, "its members claim to be larger than the file")


def check_digest(file: BinaryIO, size_bytes: int, where: str) -> str:
    """Return the digest at the end of a packed file, after verifying it.

    Raises:
        ArtifactError: the file is empty, no bundle, incomplete, damaged, or of a later format.
    """
    file.seek(max(0, size_bytes - _COMMENT_BYTES - _END_BYTES - 20))
    tail = file.read()
    found = _COMMENT.search(tail)
    if found is None or found.end() != len(tail):
        raise _no_bundle(file, where)
    if int(found[1]) != FORMAT:
        raise ArtifactError(
            f"{where} is a bundle of format {int(found[1])}",
            why=f"a later edgert wrote it; this one reads format {FORMAT}",
            fix="update edgert, or build the bundle with this one",
        )
    digest = found[2].decode()
    file.seek(0)
    if digest_of(file, size_bytes - len(found[0])) != digest:
        raise damage_error(where, "its bytes do not match its digest")
    return digest


def _no_bundle(file: BinaryIO, where: str) -> ArtifactError:
    file.seek(0)
    start = file.read(4)
    if not start.startswith(b"PK"):
        why, fix = "it does not begin like a zip file" if start else "it is empty", "name what edgert build wrote"
        return ArtifactError(f"{where} is no bundle", why=why, fix=fix)
    if where.endswith(CHECKPOINTS):
        fix = export_first(where)
        return ArtifactError(f"{where} is a model of PyTorch, no bundle", why="its name ends like one", fix=fix)
    return _foreign_error(where, "it does not end with edgert's digest: it is cut short, changed, or another zip file")


def _foreign_error(where: str, why: str) -> ArtifactError:
    return ArtifactError(f"{where} is no bundle of edgert's", why=why, fix="name what edgert build wrote")
