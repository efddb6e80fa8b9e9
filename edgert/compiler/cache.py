"""Products of steps kept on disk: an archive each, written whole, checked when read."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

from edgert.artifact import FileStore
from edgert.artifact.bundle_zip import ZipContainer, pack
from edgert.compiler.step import Product
from edgert.errors import ArtifactError

LIMIT_BYTES = 16 * 2**30
_EVIDENCE = "evidence.txt"
_FILES = "files/"


class StepCache:
    """A folder of products. Several processes may use it at once; a product that was cut short is never seen.

    Args:
        folder: made when first written to.
        limit_bytes: size it is kept under; the least recently used goes first.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes

    def get(self, key: str, tell: Callable[[str], object]) -> Product | None:
        """The product kept under a key; None if there is none, or it is damaged, which ``tell`` is told."""
        path = FileStore(self._folder, self._limit_bytes, tell).get(key)
        if path is None:
            return None
        try:
            with ZipContainer(path) as archive:
                content = {name: archive.read(name) for name in archive.sizes}
        except ArtifactError as error:  # removed by another process, or written by another edgert
            tell(f"cache entry {path} cannot be used ({error.why}); it is made afresh")
            return None
        evidence = content.pop(_EVIDENCE, b"").decode("utf-8", "replace")
        return Product({name.removeprefix(_FILES): data for name, data in content.items()}, evidence)

    def put(self, key: str, product: Product) -> None:
        """Keeps a product. Raises ArtifactError when it cannot be written."""
        content = {f"{_FILES}{name}": data for name, data in product.files.items()}
        archive = io.BytesIO()
        pack({**content, _EVIDENCE: product.evidence.encode()}, archive)
        with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
            path = Path(folder) / "product"
            path.write_bytes(archive.getbuffer())
            FileStore(self._folder, self._limit_bytes).put(key, path)
