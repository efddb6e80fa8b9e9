"""The retry ladder: plain inputs, larger pools, a split, halves, the GPU; every rung once, and an end."""

from dataclasses import replace

import pytest

from edgert.backend.tensorrt.build_process import BuildResult, CompileError
from edgert.backend.tensorrt.build_request import BuildRequest, Format, Pools
from edgert.backend.tensorrt.log import classify
from edgert.backend.tensorrt.retry import Attempt, build_retrying, next_attempt
from edgert.errors import BuildError

ORDER = tuple("abcdefgh")
ALL = dict.fromkeys(ORDER, "dla0")
BLAMED = (classify("ERROR", "Could not find any implementation for node {ForeignNode[c...f]}."),)


def climb(first: Attempt, fails: object) -> list[Attempt]:
    """All tries until one succeeds or the ladder ends."""
    tried = [first]
    while len(tried) < 100:
        following = next_attempt(tried, (), ORDER)
        if following is None:
            return tried
        tried.append(following)
        if not fails(following):  # type: ignore[operator]
            return tried
    raise AssertionError("the ladder has no end")


def on_dla(attempt: Attempt) -> str:
    return "".join(name for name in ORDER if attempt.placement.get(name, "gpu") != "gpu")


def test_pools_come_first_and_are_valid() -> None:
    following = next_attempt([Attempt(Pools(), ALL)], (), ORDER)
    assert following is not None and following.rung == "pools" and following.placement == ALL
    assert following.pools == Pools(None, 2 << 20, 2 << 30, 1 << 30)


def test_pools_at_their_limit_are_not_tried_again() -> None:
    following = next_attempt([Attempt(Pools(None, 4 << 20, 4 << 30, 2 << 30), ALL)], (), ORDER)
    assert following is not None and following.rung == "split"


def test_the_blamed_region_is_split() -> None:
    first, larger = Attempt(Pools(), ALL), Attempt(Pools(None, 2 << 20, 2 << 30, 1 << 30), ALL, "pools")
    following = next_attempt([first, larger], BLAMED, ORDER)
    assert following is not None and following.rung == "split" and on_dla(following) == "abcdfgh"
    assert "4 nodes" in following.reason and "'e'" in following.reason


def test_one_bad_node_is_found() -> None:
    tries = climb(Attempt(Pools(), ALL), lambda attempt: "f" in on_dla(attempt))
    assert [attempt.rung for attempt in tries[:3]] == ["", "pools", "split"]
    assert "f" not in on_dla(tries[-1]) and set("abcd") <= set(on_dla(tries[-1]))


@pytest.mark.parametrize("bad", ORDER)
def test_a_search_gives_back_what_was_not_to_blame(bad: str) -> None:
    tries = climb(Attempt(Pools(), ALL), lambda attempt: bad in on_dla(attempt))
    assert bad not in on_dla(tries[-1]) and len(on_dla(tries[-1])) >= 4 and len(tries) <= 7


def test_two_bad_nodes() -> None:
    tries = climb(Attempt(Pools(), ALL), lambda attempt: set("ah") & set(on_dla(attempt)) != set())
    assert on_dla(tries[-1]) and not set("ah") & set(on_dla(tries[-1]))


def test_when_nothing_works_all_is_on_the_gpu_in_the_end() -> None:
    tries = climb(Attempt(Pools(), ALL), lambda attempt: True)
    assert on_dla(tries[-1]) == "" and tries[-1].rung == "gpu" and len(tries) <= 20


def test_a_network_on_the_gpu_has_no_further_try() -> None:
    assert next_attempt([Attempt(Pools(), {})], (), ORDER) is None


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_regions(length: int) -> None:
    placement = dict.fromkeys(ORDER[:length], "dla0")
    assert on_dla(climb(Attempt(Pools(), placement), lambda attempt: bool(on_dla(attempt)))[-1]) == ""


class TestRetrying:
    REQUEST = BuildRequest(b"", {name: (f"{name}_out",) for name in ORDER}, placement=ALL)
    RESULT = BuildResult(b"plan", b"", (), "", (), (), "TensorRT 10.3.0", 1.0)

    def once(self, request: BuildRequest) -> BuildResult:
        """A compiler that cannot do node f on a DLA."""
        if request.placement.get("f") == "dla0":
            error = CompileError("no", why="f")
            error.log = BLAMED
            raise error
        return self.RESULT

    def test_what_was_built_is_reported(self) -> None:
        reported: list[Attempt] = []
        built = build_retrying(self.REQUEST, self.once, reported.append)
        assert built.result is self.RESULT and built.request.placement["f"] == "gpu"
        assert built.request.placement["a"] == "dla0" and list(built.attempts[1:]) == reported
        assert all(attempt.reason for attempt in reported)

    def test_the_first_try_that_works_is_the_only_one(self) -> None:
        built = build_retrying(self.REQUEST, lambda request: self.RESULT)
        assert built.request.placement == ALL and len(built.attempts) == 1

    def test_a_refusal_is_not_tried_again(self) -> None:
        seen: list[BuildRequest] = []

        def refuse(request: BuildRequest) -> BuildResult:
            seen.append(request)
            raise BuildError("cannot parse node 'a'")

        with pytest.raises(BuildError, match="cannot parse"):
            build_retrying(self.REQUEST, refuse)
        assert len(seen) == 1

    def test_the_last_failure_is_raised(self) -> None:
        def fail(request: BuildRequest) -> BuildResult:
            raise CompileError(f"failed with {sum(one != 'gpu' for one in request.placement.values())} on the DLA")

        with pytest.raises(CompileError, match="failed with 0 on the DLA"):
            build_retrying(self.REQUEST, fail)

    def test_an_optional_format_is_left_out_before_anything_else(self) -> None:
        """The same pools and placement once more: a layout is worth less than what the DLA computes."""
        reported: list[Attempt] = []
        formats = {"x": Format("DLA_HWC4", "int8", 0.5, optional=True), "y": Format("LINEAR")}

        def fail_with_it(request: BuildRequest) -> BuildResult:
            if "x" in request.formats:
                raise CompileError("no")
            return self.RESULT

        built = build_retrying(replace(self.REQUEST, formats=formats), fail_with_it, reported.append)
        assert dict(built.request.formats) == {"y": Format("LINEAR")} and built.request.placement == ALL
        assert [(attempt.rung, attempt.pools) for attempt in reported] == [("plain", self.REQUEST.pools)]
        assert "layout of its input" in reported[0].reason

    def test_then_pools_grow_as_ever(self) -> None:
        first = Attempt(Pools(), ALL, optional=True)
        plain = next_attempt([first], (), ORDER)
        assert plain is not None and plain.rung == "plain"
        larger = next_attempt([first, plain], (), ORDER)
        assert larger is not None and (larger.rung, larger.optional) == ("pools", False)
