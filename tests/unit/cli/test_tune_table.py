"""What is shown of a search."""

from io import StringIO

from rich.console import Console

from edgert.cli.bundle_tables import show_tuned
from edgert.quantization.throughput import Timing
from edgert.tuner.candidates import Tactic
from edgert.tuner.trials import Trial, Tuned

DEFAULT, BEST = Tactic("ort", "ort", 1, 2), Tactic("openvino", "ort", 2, 1)
LEFT = {"batches": "no stage says batch:"}
ABSENT = [Tactic("abacus", "float", 1, threads) for threads in (1, 2)]


def test_what_ran_stands_in_the_table_and_what_did_not_below_it() -> None:
    tried = (
        Trial(BEST, frame=Timing(4.0, 3.9, 4.4, 30), gain=2.0, memory_bytes=2**20),
        Trial(DEFAULT, frame=Timing(8.0, 7.9, 8.4, 120), gain=1.0),
        Trial(Tactic("ort", "float", 1, 2), "over the latency, 9 ms", Timing(11.0, 10.0, 12.0, 7), 0.7),
        *(Trial(one, "refused: abacus is not installed") for one in ABSENT),
    )
    out = StringIO()
    show_tuned(Console(file=out, width=120), "parts", Tuned(DEFAULT, BEST, 2.0, 30, False, {}, tried, LEFT))
    text = out.getvalue()
    assert "parts: 5 tactics, for files" in text
    row = next(line for line in text.splitlines() if "openvino int8, 2 × 1 thread " in line)
    assert all(word in row for word in ("4.00", "2.00", "30", "1.0 MiB", "chosen"))
    assert "default" in next(line for line in text.splitlines() if "8.00" in line)
    assert "over the latency, 9 ms" in text
    assert "abacus float, 1 thread and 1 more: refused: abacus is not installed" in text
    assert "left out: batches: no stage says batch:" in text
    assert "parts: gain 2.00 ×; openvino int8, 2 × 1 thread: 2.00 × as fast as ort int8, 2 threads (n=30)" in text
