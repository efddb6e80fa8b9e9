"""What edgert keeps on disk between runs."""

from edgert.artifact.store import FileStore, cache_folder

__all__ = ["FileStore", "cache_folder"]
