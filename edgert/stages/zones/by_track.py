"""A table of numbers for the objects of a stream, with a row for each track."""

from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class ByTrack:
    """Table with a row for each track number. Its columns are arrays whose last axis is the rows.

    Args:
        columns: values of new tracks, by column; their shape is that of the column without its last axis.

    Attributes:
        ids: track numbers of the rows, in rising order.
    """

    def __init__(self, **columns: npt.NDArray[Any]) -> None:
        self.ids: I64 = np.zeros(0, np.int64)
        self._fresh = columns
        self._columns = {name: np.zeros((*row.shape, 0), row.dtype) for name, row in columns.items()}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a column, to read and write until the next :meth:`rows` or :meth:`keep`."""
        return self._columns[name]

    def rows(self, ids: I64) -> npt.NDArray[np.intp]:
        """Return the row of each track number, (N,); add rows for new ones."""
        places = np.searchsorted(self.ids, ids)
        if len(self.ids) and (self.ids.take(places, mode="clip") == ids).all():
            return places
        new = np.setdiff1d(ids, self.ids)
        before = np.searchsorted(self.ids, new)
        self.ids = np.insert(self.ids, before, new)
        for name, column in self._columns.items():
            self._columns[name] = np.insert(column, before, self._fresh[name][..., None], axis=-1)
        return np.searchsorted(self.ids, ids)

    def keep(self, stays: npt.NDArray[np.bool_]) -> None:
        """Remove all rows but these, given as (rows,)."""
        if not stays.all():
            self.ids = self.ids[stays]
            self._columns = {name: column[..., stays] for name, column in self._columns.items()}
