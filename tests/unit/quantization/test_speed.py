from collections.abc import Iterator

import numpy as np
import pytest

from edgert.config import EmbedTask, ModelConfig
from edgert.graph import Model
from edgert.quantization import throughput
from edgert.quantization.throughput import MOST_ROUNDS, ROUNDS, fastest, race, winner
from tests.unit.quantization.network import network


def turns(*versions: Iterator[float]) -> list[list[float]]:
    return race(lambda: [next(one) for one in versions])


def steady(ms: float, spread: float = 0.0, seed: int = 0) -> Iterator[float]:
    random = np.random.default_rng(seed)
    while True:
        yield ms + spread * float(random.random())


def test_a_clear_case_takes_few_turns() -> None:
    taken = turns(steady(8, 1, 0), steady(3, 1, 1))
    assert [len(one) for one in taken] == [ROUNDS, ROUNDS]
    assert winner(taken) == 1


def test_a_close_one_is_run_until_it_is_clear() -> None:
    taken = turns(steady(8.2, 1, 0), steady(8.0, 1, 1))
    assert ROUNDS < len(taken[0]) <= MOST_ROUNDS
    assert winner(taken) == 1


def test_a_tie_ends_and_goes_to_the_first() -> None:
    taken = turns(steady(8, 1, 2), steady(8, 1, 3), steady(9, 1, 4))
    assert len(taken[0]) == MOST_ROUNDS
    assert winner(taken) == 0
    assert winner(turns(steady(8), steady(8))) == 0


def test_slow_turns_of_the_machine_decide_nothing() -> None:
    def disturbed() -> Iterator[float]:
        for number, ms in enumerate(steady(5, 0.1)):
            yield ms * (30 if number % 4 == 0 else 1)

    taken = turns(steady(6, 0.1, 1), disturbed())
    assert np.mean(taken[1]) > np.mean(taken[0]) and winner(taken) == 1


def test_the_first_of_those_that_none_beats() -> None:
    assert winner([[5.0] * 20, [4.0] * 20, [4.0] * 20]) == 1


def test_models_are_run_on_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    config = ModelConfig(onnx=model.path, task=EmbedTask(embed="none"), threads=1)
    versions: dict[str, Model] = {"fp32": model, "again": network(pooled=False)}
    monkeypatch.setattr(throughput, "winner", lambda taken: 1)
    choice = fastest(versions, config)
    assert list(choice.run_ms) == ["fp32", "again"] and all(one.runs >= ROUNDS for one in choice.run_ms.values())
    assert all(0 < one.low_ms <= one.median_ms <= one.high_ms for one in choice.run_ms.values())
    assert (choice.name, choice.model) == ("again", versions["again"])
    assert choice.times.startswith("fp32 ") and choice.times.endswith(" ms a run")
