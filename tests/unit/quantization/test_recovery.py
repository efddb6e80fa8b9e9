from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgert.quantization import recovery as module
from edgert.quantization.evaluator import Result
from edgert.quantization.quantizer import Quantized, Quantizer
from edgert.quantization.recovery import Recovered, recover
from edgert.quantization.run import DEFAULT_RUN, Run

COSTS = {"stem": 0.3, "body": 0.02, "head": 0.2}


@dataclass
class Maker:
    """Stands for a quantizer: its models record how they were made."""

    name: str = "plain"
    corrects_biases: bool = True
    made: list[tuple[frozenset[str], bool]] = field(default_factory=list)
    units: tuple[str, ...] = tuple(COSTS)
    feeds: tuple[str, ...] = ("image",)
    model: Any = field(default_factory=lambda: SimpleNamespace(digest="0"))
    recipe: str = "recipe"

    def finish(self, keep: Collection[str] = (), *, correct: bool = True) -> Quantized:
        self.made.append((frozenset(keep), correct))
        return cast(Quantized, (self.name, frozenset(keep), correct))


@dataclass
class Scores:
    """Takes off what each unit in INT8 costs; corrected biases and smoothed activations change that."""

    correction: float = 0.01
    smoothing: float = 0.25
    floor: float = 0.8
    goal: float = 0.9
    is_strict: bool = False
    metric: str = "agreement"

    def evaluate(self, quantized: Quantized) -> Result:
        name, kept, corrected = cast(tuple[str, frozenset[str], bool], quantized)
        value = 1 - sum(cost for unit, cost in COSTS.items() if unit not in kept)
        return Result(value + self.correction * corrected + self.smoothing * (name == "smooth"))


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def noise(quantizer: Any, feeds: Any) -> Callable[[frozenset[str]], float]:
        return lambda kept: sum(cost for unit, cost in COSTS.items() if unit not in kept)

    monkeypatch.setattr(module, "rounding_noise", noise)


def recovered(maker: Maker, evaluator: Scores | None, run: Run = DEFAULT_RUN, **allowed: Any) -> Recovered:
    return recover(cast(Quantizer, maker), evaluator, run, **allowed)


def smoothed() -> Quantizer:
    return cast(Quantizer, Maker("smooth"))


def test_without_an_evaluator_it_is_made_as_asked() -> None:
    maker = Maker()
    made = recovered(maker, None, smoothed=smoothed, budget_s=60)
    assert maker.made == [(frozenset(), True)]
    assert made.result is None and made.search is None


@pytest.mark.parametrize(("correction", "wanted"), [(0.01, True), (-0.2, False)])
def test_biases_are_corrected_where_that_is_better(correction: float, wanted: bool) -> None:
    made = recovered(Maker(), Scores(correction, floor=0.0))
    assert made.corrected is wanted
    assert cast(Any, made.quantized) == ("plain", frozenset(), wanted)


def test_without_images_to_correct_over_there_is_one_version() -> None:
    maker = Maker(corrects_biases=False)
    assert not recovered(maker, Scores(floor=0.0)).corrected
    assert maker.made == [(frozenset(), False)]


def test_a_good_model_is_let_alone() -> None:
    logged: list[str] = []
    made = recovered(Maker(), Scores(floor=0.4), Run(log=logged.append), smoothed=smoothed, budget_s=60)
    assert made.search is None and made.quantizer.model.digest == "0" and logged == []


def test_channels_are_evened_out_first_and_units_kept_after_that() -> None:
    made = recovered(Maker(), Scores(), smoothed=smoothed, budget_s=60)
    assert cast(Any, made.quantized) == ("smooth", frozenset({"stem"}), True)
    assert made.search is not None and made.search.kept == ("stem",) and made.search.met
    assert made.scan is not None and tuple(made.scan) == ("stem", "head", "body")
    enough = recovered(Maker(), Scores(smoothing=0.6), smoothed=smoothed, budget_s=60)
    assert enough.search is None and cast(Any, enough.quantized)[0] == "smooth"


def test_the_search_says_how_long_it_may_take_and_what_it_found() -> None:
    logged: list[str] = []
    moved: list[tuple[str, int, int]] = []
    run = Run(log=logged.append, bar=lambda *reported: moved.append(reported))
    recovered(Maker(), Scores(), run, budget_s=120)
    assert "looking for the layers that cost the accuracy, for at most 2 min" in logged
    assert [line for line in logged if line.endswith("with 1 of 3 layers kept")]
    assert moved == [("ranking layers", done, 3) for done in range(3)]


def test_smoothing_out_that_does_harm_or_nothing_is_not_used() -> None:
    worse = recovered(Maker(), Scores(smoothing=-0.1), smoothed=smoothed, budget_s=60)
    assert cast(Any, worse.quantized) == ("plain", frozenset({"stem", "head"}), True)
    nothing = recovered(Maker(), Scores(), smoothed=lambda: None, budget_s=60)
    assert cast(Any, nothing.quantized) == ("plain", frozenset({"stem", "head"}), True)


def test_without_time_nothing_is_kept() -> None:
    made = recovered(Maker(), Scores())
    assert made.search is None and made.result is not None and made.result.value < 0.8


def test_biases_are_tried_again_once_less_is_lost() -> None:
    class Late(Scores):
        """Correction helps only a model that keeps something."""

        def evaluate(self, quantized: Quantized) -> Result:
            _, kept, corrected = cast(tuple[str, frozenset[str], bool], quantized)
            return Result(super().evaluate(quantized).value + (0.02 if kept else -0.1) * corrected)

    made = recovered(Maker(), Late(0.0), budget_s=60)
    assert made.corrected and cast(Any, made.quantized) == ("plain", frozenset({"stem", "head"}), True)


def test_what_cannot_be_recovered_comes_back_as_the_best_there_was() -> None:
    made = recovered(Maker(), Scores(0.0, goal=1.5), budget_s=60)
    assert made.search is not None and not made.search.met
    assert set(made.search.kept) == set(COSTS)


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    recovered(Maker(), Scores(), budget_s=60, state=state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json", "state.json.scan"]
    maker = Maker()
    again = recovered(maker, Scores(), budget_s=60, state=state)
    assert cast(Any, again.quantized) == ("plain", frozenset({"stem", "head"}), True)
    assert [kept for kept, _ in maker.made] == [frozenset(), frozenset(), frozenset({"stem", "head"})]
