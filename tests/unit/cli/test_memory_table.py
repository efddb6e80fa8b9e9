from __future__ import annotations

import pytest

from edgert.budget.footprint import Footprint, Part
from edgert.cli.memory_plan import show_memory

MIB = 2**20
PARTS = (Part("process", "cpu", "runtime", 100 * MIB),)


@pytest.mark.parametrize(
    ("budget", "machine", "verdict"),
    [
        (None, 1000, "fits: at least 92.0 MiB of the machine's 1000.0 MiB, swap and all"),
        (None, 90, "does not fit: at least 92.0 MiB of the machine's 90.0 MiB, swap and all"),
        (None, 0, "fits: at least 92.0 MiB"),
        (120, 1000, "fits: 108.0 MiB with 8% to spare for the prediction's error, of the budget's 120.0 MiB"),
        (105, 1000, "does not fit: 108.0 MiB with 8% to spare for the prediction's error, of the budget's 105.0 MiB"),
        (120, 90, "does not fit: at least 92.0 MiB of the machine's 90.0 MiB, swap and all"),
    ],
)
def test_the_verdict_says_whose_limit_it_is(
    budget: int | None, machine: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_bytes = None if budget is None else budget * MIB
    show_memory(Footprint(PARTS, budget_bytes, machine * MIB, ("queues half as long: 1.0 MiB less",), 0.08))
    text = " ".join(capsys.readouterr().out.split())
    assert text.endswith(f"made smaller: queues half as long: 1.0 MiB less {verdict}")
