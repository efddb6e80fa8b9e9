"""Many units of work as columns of numbers, so that one formula costs all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from edgert.place.cost.work import CONV, DEPTHWISE, PRODUCT, VIEW, Work

Numbers = npt.NDArray[np.float64]
Scalars = float | Numbers
"""One number for all units, or one for each."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a sequence of :class:`Work`, one float64 per unit; names and units as there.

    Attributes:
        rows, channels, columns, taps, groups: of the matrix product; 0 rows for kinds that have none.
        read, written: elements of activations.
        weights: elements of stored tensors.
        curved: elements that pass a sigmoid.
        launches: kernels started.
        is_dense: 1 for convolutions and matrix products but depthwise ones.
        is_depthwise: 1 for those.
        is_busy: 1 for all but views.
    """

    rows: Numbers
    channels: Numbers
    columns: Numbers
    taps: Numbers
    groups: Numbers
    read: Numbers
    written: Numbers
    weights: Numbers
    curved: Numbers
    launches: Numbers
    is_dense: Numbers
    is_depthwise: Numbers
    is_busy: Numbers

    def __len__(self) -> int:
        return len(self.rows)


def table(works: Sequence[Work], scale: float = 1.0) -> Table:
    """The columns of these units; ``scale`` is the batch over the graph's own."""
    products = [work.product for work in works]
    return Table(
        rows=scale * _column(product.rows for product in products),
        channels=_column(product.channels for product in products),
        columns=_column(product.columns for product in products),
        taps=_column(product.taps for product in products),
        groups=_column(product.groups for product in products),
        read=scale * _column(work.read for work in works),
        written=scale * _column(work.written for work in works),
        weights=_column(work.weights for work in works),
        curved=scale * _column(work.curved for work in works),
        launches=_column(work.launches for work in works),
        is_dense=_column(work.kind in (CONV, PRODUCT) for work in works),
        is_depthwise=_column(work.kind == DEPTHWISE for work in works),
        is_busy=_column(work.kind != VIEW for work in works),
    )


def joined(tables: Sequence[Table]) -> Table:
    """Tables one after the other."""
    return Table(*(np.concatenate([getattr(item, column.name) for item in tables]) for column in fields(Table)))


def _column(values: Iterable[float]) -> Numbers:
    return np.array(list(values), dtype=np.float64)
