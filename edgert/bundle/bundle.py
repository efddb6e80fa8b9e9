"""Bundles: a pipeline with its models prepared for a board, in one file that must be complete to be opened.

open_bundle(path) → Bundle with .manifest, .read(member), .extract(folder), .signer(signers)
save_bundle(path, manifest, members)
sign_bundle(path, key)
"""

import contextlib
import glob
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from edgert import limits
from edgert.bundle.manifest import NAME, Manifest, check_contents, parse_manifest
from edgert.bundle.signature import Signer, sign, verify
from edgert.errors import ArtifactError, EdgertError, raised_as
from edgert.files import replacing
from edgert.zip_archive import ZipContainer, check_content, damage_error, pack

SUFFIX = ".edgert"
SIGNATURE = f"{NAME}.sig"
"""Member with the signature of the manifest, which does not list it."""
_STALE_S = 3600.0
"""Age in seconds from which a partly written file counts as abandoned."""
_PARTIAL_NAME = "[0-9a-f]" * 32
"""Ending of the names of partly written files."""


class Bundle(contextlib.AbstractContextManager["Bundle"]):
    """An open bundle with intact members, as a context manager, created by :func:`open_bundle`."""

    def __init__(self, container: ZipContainer, manifest: Manifest) -> None:
        self._container, self.manifest = container, manifest
        size_bytes = container.sizes.get(SIGNATURE, 0)
        if size_bytes > limits.SIGNATURE_BYTES:
            why = f"its signature has {size_bytes} bytes, {limits.SIGNATURE_BYTES} at most"
            raise damage_error(str(container.path), why)
        self.signature = container.read(SIGNATURE) if size_bytes else b""

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._container.path

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def read(self, path: str) -> bytes:
        """Return the bytes of a member, checked again, as the file may have changed since it was opened.

        Raises:
            ArtifactError: there is no such member, or it is damaged.
        """
        if path not in self.manifest.members:
            raise ArtifactError(f"the bundle has no member {path!r}", where=str(self.path))
        content = self._container.read(path)
        check_content(path, content, self.manifest.members[path], str(self.path))
        return content

    def signer(self, signers: Path | None) -> Signer | None:
        """Return who signed the bundle; arguments and errors are those of :func:`~edgert.bundle.signature.verify`."""
        return verify(self.manifest.to_bytes(), self.signature, signers, str(self.path))

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """Yield a folder for members, deleted after the block, whose errors name the bundle instead of the folder."""
        with tempfile.TemporaryDirectory(prefix="edgert-") as name:
            try:
                yield Path(name)
            except EdgertError as error:
                for one in (error, *error.others):
                    texts = (one.what, one.why, one.where, one.fix)
                    one.what, one.why, one.where, one.fix = (text.replace(name, str(self.path)) for text in texts)
                raise

    def extract(self, folder: Path, paths: Iterable[str] | None = None) -> None:
        """Write members, by default all, into a folder of the caller.

        Raises:
            ArtifactError: a member is missing or damaged, or cannot be written.
        """
        for path in self.manifest.members if paths is None else paths:
            content = self.read(path)
            target = folder / path
            with raised_as(ArtifactError, f"cannot unpack {path!r}", where=str(self.path), fix="free some space"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def is_bundle(path: Path) -> bool:
    """Return whether a path seems to be a bundle, intact or damaged, and not a pipeline file."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def open_bundle(path: str | Path) -> Bundle:
    """Open a bundle after all of it was read and checked.

    Raises:
        ArtifactError: the bundle is missing, truncated, damaged, or of a later edgert; or it is no bundle; or it has
            contents that edgert does not write: links, paths that lead outside, or members that are not listed.
    """
    file = Path(path)
    if not file.exists():
        raise ArtifactError(f"there is no bundle {str(file)!r}", fix="edgert build PIPELINE -o FILE creates one")
    container = ZipContainer(file)
    try:
        return Bundle(container, _read_manifest(container))
    except BaseException:
        container.close()
        raise


def _read_manifest(container: ZipContainer) -> Manifest:
    where, sizes = str(container.path), container.sizes
    if NAME not in sizes:
        raise ArtifactError(
            f"{where} is no bundle of edgert's", why=f"it has no {NAME}", fix="name what edgert build wrote"
        )
    manifest = parse_manifest(container.read(NAME), where)
    differing = sorted((sizes.keys() - {NAME, SIGNATURE}) ^ manifest.members.keys())
    if differing:
        why = f"{differing[0]!r} is {'not listed in its manifest' if differing[0] in sizes else 'missing'}"
        raise damage_error(where, why)
    for path, member in manifest.members.items():
        if sizes[path] != member.size_bytes:  # before so much is read
            raise damage_error(where, f"member {path!r} has {sizes[path]} bytes instead of {member.size_bytes}")
        check_content(path, container.read(path), member, where)
    check_contents(manifest, container.read, where)
    return manifest


def sign_bundle(path: Path, key: Path, signers: Path | None = None) -> Signer:
    """Sign a bundle in place, atomically. An earlier signature is replaced.

    Args:
        path: path of the file.
        key: file of a private key; or of a public key, whose private key ``ssh-agent`` has.
        signers: file of allowed signers; None: anyone may sign.

    Raises:
        ArtifactError: the bundle is damaged or cannot be written; or ssh-keygen cannot sign with the key, or the key is
            not allowed. The bundle is unchanged.
    """
    with open_bundle(path) as bundle:
        manifest, members = bundle.manifest, {name: bundle.read(name) for name in bundle.manifest.members}
        signature = sign(manifest.to_bytes(), key)
        signer = verify(manifest.to_bytes(), signature, signers, str(path))
        if signature != bundle.signature:
            save_bundle(path, manifest, members, signature)
    assert signer is not None, "it was just signed"
    return signer


def save_bundle(path: Path, manifest: Manifest, members: Mapping[str, bytes], signature: bytes = b"") -> bool:
    """Write a bundle completely or not at all. A reader finds the previous one or this one.

    Args:
        path: path of the file.
        manifest: manifest of the bundle.
        members: members that the manifest lists.
        signature: signature of the manifest; empty for none.

    Returns:
        Whether anything was written; an equal and intact bundle that exists keeps its signature.

    Raises:
        ArtifactError: the bundle cannot be written; or the path exists and is no bundle.
    """
    if path.exists():  # else a partly written file of a killed build may be the only copy of the previous bundle
        for old in path.parent.glob(f".{glob.escape(path.name)}-{_PARTIAL_NAME}"):
            with contextlib.suppress(OSError):  # another build removes it at the same time, or another user owns it
                if time.time() - old.stat().st_mtime > _STALE_S:
                    old.unlink()
        if _has_equal_bundle(path, manifest, signature):
            return False
    content = {**members, NAME: manifest.to_bytes(), **({SIGNATURE: signature} if signature else {})}
    if path.is_dir():
        raise ArtifactError(f"cannot write {str(path)!r}", why="it is a folder", fix="name a file, like dock.edgert")
    with replacing(path) as file:
        pack(content, file, NAME)
    return True


def _has_equal_bundle(path: Path, manifest: Manifest, signature: bytes) -> bool:
    if not path.is_file():  # reading a FIFO would block
        return False
    try:
        with open_bundle(path) as bundle:
            return bundle.manifest == manifest and signature in (b"", bundle.signature)
    except ArtifactError:  # damaged, or no bundle
        return False
