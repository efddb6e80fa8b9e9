"""Linear and mixed-integer programs, written down term by term and solved by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.place.solver import optional

F64 = npt.NDArray[np.float64]
Terms = Mapping[int, float]
"""Variable → coefficient."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program comes to.

    Attributes:
        values: of the variables; None where none were found in time or there are none.
        cost: of the values.
        bound: no values cost less.
        is_infeasible: proven that no values keep all rows.
    """

    values: F64 | None
    cost: float
    bound: float
    is_infeasible: bool


class Program:
    """Minimise a sum over variables from 0 to 1, or to ``upper``, under rows."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[Terms, float]] = []

    def variable(self, cost: float = 0.0, *, whole: bool = False, upper: float = 1.0) -> int:
        """A new one's index."""
        self._costs.append(cost)
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._costs) - 1

    def at_most(self, terms: Terms, most: float) -> None:
        """A row: the sum of the terms is at most this."""
        self._rows.append((terms, most))

    def equal(self, terms: Terms, value: float) -> None:
        """Two rows."""
        self.at_most(terms, value)
        self.at_most({variable: -factor for variable, factor in terms.items()}, -value)

    def solve(self, *, time_limit_s: float, gap: float = 1e-6) -> Answer:
        """The best values, to a relative gap, or what was found in time."""
        optimize = optional("optimize")
        found = optimize.milp(
            np.array(self._costs),
            integrality=np.array(self._whole, int),
            bounds=optimize.Bounds(0, np.array(self._upper)),
            constraints=optimize.LinearConstraint(*self._matrix()) if self._rows else (),
            options={"time_limit": max(time_limit_s, 0.01), "mip_rel_gap": gap},
        )
        if found.x is None:
            return Answer(None, np.inf, -np.inf, found.status == 2)
        bound = found.fun if found.mip_dual_bound is None else found.mip_dual_bound
        return Answer(np.asarray(found.x), float(found.fun), float(bound), False)

    def _matrix(self) -> tuple[Any, float, F64]:
        lengths = [len(terms) for terms, _ in self._rows]
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.fromiter((variable for terms, _ in self._rows for variable in terms), np.int64)
        factor = np.fromiter((value for terms, _ in self._rows for value in terms.values()), np.float64)
        shape = (len(lengths), len(self._costs))
        matrix = optional("sparse").csr_array((factor, (row, column)), shape=shape)
        return matrix, -np.inf, np.array([most for _, most in self._rows])
