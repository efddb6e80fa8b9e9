"""Which tensors must have one scale: sets that grow together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Sharing:
    """Disjoint sets of tensors (union-find); the members of a set keep the order in which they were named."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, names: Iterable[str]) -> None:
        """Puts all of them, and whatever they were joined with before, into one set."""
        first, *others = [self._root(name) for name in names] or [""]
        for other in others:
            self._parents[self._root(other)] = self._root(first)

    def groups(self, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """For each of the tensors, which of them are in its set."""
        sets: dict[str, list[str]] = {}
        for name in names:
            sets.setdefault(self._root(name), []).append(name)
        return {name: tuple(members) for members in sets.values() for name in members}

    def _root(self, name: str) -> str:
        parent = self._parents.setdefault(name, name)
        while parent != self._parents[parent]:
            self._parents[name] = parent = self._parents[parent]
        return parent
