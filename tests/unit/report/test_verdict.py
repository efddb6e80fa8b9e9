from dataclasses import replace

import pytest

from edgert.report.quantization_record import AccuracyRow, SpeedRow, judge
from tests.helpers.quantization_report import EMPTY, full_report

SPACE = "\N{NO-BREAK SPACE}"


def row(drop: float, max_drop: float | None = 0.01, metric: str = "top-1", **more: object) -> AccuracyRow:
    return replace(AccuracyRow(metric, 0.7, 0.7 - drop, max_drop=max_drop), **more)  # type: ignore[arg-type]


def test_kept_budget_is_one_sentence() -> None:
    verdict = judge(full_report())
    assert verdict.kept is True
    assert verdict.sentence.replace(SPACE, " ") == (
        "INT8 keeps its accuracy budget: top-1 falls by 0.42 points (1.00 allowed); "
        "it runs 1.8× as fast and its file is 3.6× smaller."
    )
    assert verdict.cautions == ()
    assert [figure.value.replace(SPACE, " ") for figure in verdict.figures] == [
        "−0.42 points",
        "1.8× as fast",
        "3.6× smaller",
        "11 of 12",
    ]


def test_one_missed_budget_misses_all_and_is_the_one_named() -> None:
    verdict = judge(replace(EMPTY, accuracy=(row(0.001), row(0.02, metric="mAP50-95"))))
    assert verdict.kept is False
    assert "misses" in verdict.sentence and "mAP50-95 falls by 2.00" in verdict.sentence
    verdict = judge(replace(EMPTY, accuracy=(row(-0.02, metric="CER", is_error=True),)))
    assert verdict.kept is False and "CER rises by 2.00" in verdict.sentence


@pytest.mark.parametrize("max_drop", [0.01, 0.007, 0.003, 0.001])
def test_a_drop_as_large_as_the_budget_keeps_it(max_drop: float) -> None:
    assert all(AccuracyRow("top-1", fp32, fp32 - max_drop, max_drop=max_drop).kept for fp32 in (0.702, 0.3, 0.1234))
    assert not AccuracyRow("top-1", 0.702, 0.702 - max_drop - 1e-4, max_drop=max_drop).kept


def test_without_budget_nothing_is_kept_or_missed() -> None:
    verdict = judge(replace(EMPTY, accuracy=(row(0.004, None),)))
    assert verdict.kept is None and "no accuracy budget" in verdict.sentence


def test_nothing_measured_is_said() -> None:
    assert judge(EMPTY).sentence == "INT8 was made; neither its accuracy nor its speed was measured."
    assert judge(EMPTY).figures == ()
    assert judge(replace(EMPTY, sizes_bytes={"FP32": 400, "INT8": 100})).sentence.endswith("accuracy was not measured.")


@pytest.mark.parametrize(
    ("drop", "expected"), [(-0.002, "rises by 0.20"), (0.0, "stays the same"), (0.002, "falls by 0.20")]
)
def test_gains_and_losses_have_their_words(drop: float, expected: str) -> None:
    assert expected in judge(replace(EMPTY, accuracy=(row(drop),))).sentence


@pytest.mark.parametrize(
    ("int8_ms", "expected"), [(5.0, "2.0× as fast"), (20.0, "slower, taking 2.0× as long"), (10.1, "as fast as FP32")]
)
def test_slower_is_as_plain_as_faster(int8_ms: float, expected: str) -> None:
    speed = (SpeedRow("FP32", 10.0, 9), SpeedRow("INT8", int8_ms, 9))
    assert expected in judge(replace(EMPTY, speed=speed)).sentence


@pytest.mark.parametrize(
    ("drop", "interval", "expected"),
    [(0.004, (0.0, 0.02), "past the budget"), (0.02, (0.005, 0.03), "into the budget"), (0.004, (0.0, 0.009), None)],
)
def test_an_interval_across_the_budget_is_a_caution(
    drop: float, interval: tuple[float, float], expected: str | None
) -> None:
    cautions = judge(replace(EMPTY, accuracy=(row(drop, interval=interval),))).cautions
    assert [expected in one for one in cautions] == ([True] if expected else [])


def test_rows_of_other_precisions_do_not_decide() -> None:
    rows = (row(0.03), row(0.001, precision="FP16"))
    assert judge(replace(EMPTY, precision="FP16", accuracy=rows)).kept is True
