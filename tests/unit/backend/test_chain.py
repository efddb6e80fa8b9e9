"""An ordered chain of engines: who runs, what is reported of the others, and when that is an error."""

import logging
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest

from edgert.backend.chain import Chain, Replicated, Skipped, why_not
from edgert.backend.tensorrt import library as version
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board.record import board
from edgert.errors import BuildError, ConfigError, DeviceError
from tests.helpers.trt_bench import HERE, ORIN, Bench

NAMES = ("tensorrt-dla", "tensorrt", "onnxruntime")


class Made:
    """Which engines were compiled, and what was reported."""

    def __init__(self, *refusing: str, unable: dict[str, str] | None = None, strict: bool = False) -> None:
        self.asked: list[str] = []
        self.reported: list[Skipped] = []
        self.questions: list[str] = []
        self.stop = threading.Event()
        self._refusing, self._unable = refusing, unable or {}
        self.chain = Chain(
            NAMES, self._why, strict=strict, report=self.reported.append, where="p.yaml:3", stop=self.stop
        )

    def _why(self, engine: str) -> str:
        self.questions.append(engine)
        return self._unable.get(engine, "")

    def make(self, engine: str) -> str:
        self.asked.append(engine)
        if engine in self._refusing:
            raise BuildError(f"{engine} has no Frobnicate", why="no such operator", fix="write it with others")
        return f"by {engine}"


def test_the_first_that_can_does() -> None:
    made = Made()
    choice = made.chain.first_engine("parts", made.make)
    assert (choice.engine, choice.compiled, choice.skipped) == ("tensorrt-dla", "by tensorrt-dla", ())
    assert made.reported == [] and choice.info == {"engine": "tensorrt-dla", "skipped": []}


def test_what_is_not_there_is_reported_once_and_stands_in_the_info_of_every_model() -> None:
    made = Made(unable={"tensorrt-dla": "no DLA"})
    infos = [made.chain.first_engine(name, made.make).info for name in ("parts", "plates")]
    assert infos[0]["skipped"] == infos[1]["skipped"] == [{"engine": "tensorrt-dla", "why": "no DLA", "model": ""}]
    assert made.reported == [Skipped("tensorrt-dla", "no DLA")] and made.questions == ["tensorrt-dla", "tensorrt"]


def test_a_model_that_an_engine_refuses_goes_to_the_next() -> None:
    made = Made("tensorrt-dla", "tensorrt")
    choice = made.chain.first_engine("parts", made.make)
    assert choice.engine == "onnxruntime" and made.reported == list(choice.skipped)
    assert str(choice.skipped[1]) == (
        "tensorrt skipped for model parts: tensorrt has no Frobnicate: no such operator (write it with others)"
    )


def test_nothing_left() -> None:
    made = Made(*NAMES)
    with pytest.raises(BuildError, match="no engine of the chain") as caught:
        made.chain.first_engine("parts", made.make)
    assert all(name in caught.value.why for name in NAMES) and caught.value.where == "p.yaml:3"


def test_by_default_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "edgert.backend"):
        Chain(NAMES, {"tensorrt-dla": "no DLA", "tensorrt": ""}.__getitem__).first_engine(
            "parts", lambda engine: engine
        )
    assert caplog.messages == ["tensorrt-dla skipped: no DLA"]


class TestStrict:
    def test_what_is_not_there_is_an_error(self) -> None:
        made = Made(unable={"tensorrt-dla": "no DLA"}, strict=True)
        with pytest.raises(BuildError, match="tensorrt-dla cannot run this here") as caught:
            made.chain.first_engine("parts", made.make)
        assert caught.value.why == "no DLA" and made.asked == []
        assert caught.value.fix == "without --strict, the next possible engine is used: tensorrt, onnxruntime"

    def test_the_last_of_a_chain_names_what_runs_everywhere(self) -> None:
        with pytest.raises(BuildError, match="tensorrt cannot run this here") as caught:
            Chain(["tensorrt"], {"tensorrt": "no GPU"}.__getitem__, strict=True).unavailable()
        assert caught.value.fix == "engines: [onnxruntime] runs everywhere"

    def test_a_refusal_names_which_engines_come_next(self) -> None:
        made = Made("tensorrt-dla", "tensorrt", strict=True)
        with pytest.raises(BuildError, match="tensorrt-dla has no Frobnicate") as caught:
            made.chain.first_engine("parts", made.make)
        following = "without --strict, the next possible engine is used: tensorrt, onnxruntime"
        assert caught.value.fix == f"write it with others; {following}" and made.asked == ["tensorrt-dla"]

    def test_where_nothing_is_skipped_it_changes_nothing(self) -> None:
        made = Made(strict=True)
        assert made.chain.first_engine("parts", made.make).engine == "tensorrt-dla"


def test_a_build_that_was_stopped_is_no_reason_for_another_engine() -> None:
    made = Made("tensorrt-dla")
    made.stop.set()
    with pytest.raises(BuildError, match="Frobnicate"):
        made.chain.first_engine("parts", made.make)
    assert made.asked == ["tensorrt-dla"]


def test_a_mistake_in_the_file_is_no_engines_fault() -> None:
    with pytest.raises(ConfigError):
        Made().chain.first_engine("parts", Mock(side_effect=ConfigError("a mistake")))


def test_all_engines_of_a_model_are_closed_even_if_one_fails() -> None:
    first, second = (Mock(info={}, **{"close.side_effect": DeviceError("lost")}) for _ in range(2))
    with pytest.raises(DeviceError):
        Replicated([(first, 1), (second, 1)]).close()
    assert first.close.call_count == second.close.call_count == 1


class TestMachines:
    def test_a_dla_that_is_not_there(self) -> None:
        trt = Bench().backend
        nano = replace(ORIN, name="orin-nano-8gb", board=board("orin-nano-8gb"))
        assert "has no DLA" in why_not("tensorrt-dla", nano, trt)
        assert why_not("tensorrt-dla", HERE, trt) == "host has no DLA"
        assert why_not("tensorrt-dla", ORIN, trt) == "" == why_not("tensorrt", nano, trt)

    def test_a_mode_without_dla(self) -> None:
        modes = [mode.name for mode in board("orin-nx-16gb").modes if not mode.dla_cores]
        for mode in modes:
            assert "turns the DLA off" in why_not("tensorrt-dla", replace(ORIN, mode=mode), Bench().backend)

    def test_a_board_that_edgert_does_not_run_on_has_no_tensorrt_to_install(self) -> None:
        xavier = replace(ORIN, name="xavier-nx-8gb", board=board("xavier-nx-8gb"))
        for engine in ("tensorrt", "tensorrt-dla"):
            assert "does not run on a Jetson Xavier NX 8GB: its last JetPack" in why_not(
                engine, xavier, Bench().backend
            )
        assert why_not("onnxruntime", xavier, Bench().backend) == ""

    def test_no_tensorrt_names_how_to_get_that_of_this_jetpack(self, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = version.missing_error(ImportError("No module named 'tensorrt'"), ORIN, "auto")
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.load", Mock(side_effect=missing))
        why = why_not("tensorrt", ORIN, TrtBackend(machine=ORIN))
        assert "No module named 'tensorrt'" in why and "JetPack 6.2" in why and "nvidia-jetpack" in why

    def test_compiling_wants_no_gpu(self) -> None:
        device = Mock(side_effect=DeviceError("there is no NVIDIA GPU here", why="none"))
        trt = TrtBackend(machine=HERE, library=Bench().backend.library, device=device)
        assert why_not("tensorrt", HERE, trt, runs=False) == ""
        assert "no NVIDIA GPU" in why_not("tensorrt", HERE, trt)

    def test_onnx_runtime_runs_everywhere_and_others_are_not_known(self) -> None:
        assert why_not("onnxruntime", HERE, Bench().backend) == ""
        assert "no engine 'abacus'" in why_not("abacus", HERE, Bench().backend)
