"""Python's garbage collector: what it passes over, and that nothing is lost to it for good."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from edgert.gc_control import gc_frequent, gc_held, gc_paused


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    gc.collect()
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*before)


@pytest.mark.parametrize("context", [gc_held, gc_paused])
def test_it_runs_afterwards_as_before(context: type) -> None:
    with context():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with context():
        pass
    assert not gc.isenabled()


def test_what_stays_is_old_at_once() -> None:
    with gc_paused():
        made = [Circle() for _ in range(1000)]
    assert gc.get_freeze_count() < 2_000
    young = [one for generation in (0, 1) for one in gc.get_objects(generation)]
    assert not any(isinstance(one, Circle) for one in young)
    assert len(made) == 1000


def test_garbage_of_it_is_found_by_a_whole_pass() -> None:
    with gc_paused():
        gone = weakref.ref(Circle())
    gc.collect(1)
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_what_a_program_keeps_out_of_all_passes_stays_out() -> None:
    """In a process of its own: threads of other tests let frozen objects go."""
    program = (
        "import gc; from edgert.gc_control import gc_paused; gc.freeze(); before = gc.get_freeze_count()\n"
        "with gc_paused(): made = []\n"
        "assert gc.get_freeze_count() >= before > 0"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_cycles_do_not_pile_up_in_a_program_that_runs_for_long() -> None:
    gc.set_threshold(50_000)
    stays = [Circle() for _ in range(1000)]
    with gc_frequent():
        assert gc.get_freeze_count() > len(stays)
        circles = [weakref.ref(Circle()) for _ in range(9000)]
        assert sum(one() is not None for one in circles) < 5000
    assert gc.get_threshold()[0] == 50_000 and gc.get_freeze_count() < len(stays), "afterwards all is as it was"
