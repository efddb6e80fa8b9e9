"""Two signals close together, as when a terminal and a parent both pass Ctrl-C on."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgert.cli.progress import stop_on_signal
from edgert.runtime.runner import Runner

ROUNDS = 1000


@pytest.mark.parametrize("kind", ["stop_on_signal", "own handler"])
def test_two_signals_at_any_distance_end_it(kind: str) -> None:
    """In a process of its own: what hangs is killed."""
    program = f"from tests.faults.test_signals import rounds; rounds({kind!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(ROUNDS)), done.stderr[-2000:]


def rounds(kind: str) -> None:
    chance, ended = random.Random(1), 0
    for _ in range(ROUNDS):
        runner = Runner([])
        sender = threading.Thread(target=twice, args=(threading.get_ident(), chance.uniform(0, 1e-3)))
        if kind == "stop_on_signal":
            with stop_on_signal(runner.stop):
                sender.start()
                ended += runner.stop_event.wait(5.0)
                sender.join()  # its second signal may come after the stop
        else:
            signal.signal(signal.SIGTERM, lambda *_, one=runner: one.stop())
            signal.signal(signal.SIGINT, lambda *_, one=runner: one.stop())
            sender.start()
            deadline = time.monotonic() + 5.0
            while not runner.is_stopping and time.monotonic() < deadline:
                time.sleep(0)
            sender.join()
            ended += runner.is_stopping
        runner.wait()
    print(ended)


def twice(thread: int, gap_s: float) -> None:
    signal.pthread_kill(thread, signal.SIGINT)
    time.sleep(gap_s)
    signal.pthread_kill(thread, signal.SIGTERM)


def test_a_hangup_is_a_stop_unless_it_is_ignored() -> None:
    stopped = threading.Event()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup ignores it
    try:
        with stop_on_signal(stopped.set):
            os.kill(os.getpid(), signal.SIGHUP)
            assert stopped.wait(5.0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stopped.clear()
        with stop_on_signal(stopped.set):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopped.wait(0.1)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("is_last", "code"), [(True, 0), (False, -signal.SIGTERM)])
def test_a_second_signal_does_not_break_off_what_is_written_last(is_last: bool, code: int) -> None:
    program = (
        "import os, signal; from edgert.cli.progress import stop_on_signal\n"
        f"with stop_on_signal(lambda: None, is_last={is_last}): os.kill(os.getpid(), signal.SIGINT)\n"
        "os.kill(os.getpid(), signal.SIGTERM); print('written')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and bool(done.stdout) == is_last


def test_the_block_gives_handlers_and_files_back() -> None:
    folder = Path("/proc/self/fd")
    before, files = signal.getsignal(signal.SIGTERM), len([*folder.iterdir()])
    with stop_on_signal(lambda: None):
        pass
    assert (signal.getsignal(signal.SIGTERM), len([*folder.iterdir()])) == (before, files)


RAISED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(name, *_):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
sys.argv[1:] = ["validate", "hello"]
from edgert.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["edgert.cli", "typer", "edgert.cli.terminal", "edgert.validation", "numpy", "cv2"])
def test_ctrl_c_while_modules_are_imported_is_quiet(module: str) -> None:
    program = RAISED.replace("MODULE", repr(module))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_was_stopped_has_the_exit_code_of_an_interrupted_one(
    number: signal.Signals, tmp_path: Path
) -> None:
    program = (
        "import os, signal, sys\n"
        "import edgert.compiler.build_pipeline as module\n"
        "from edgert.errors import BuildError\n"
        "def build(*_, on_progress, **__):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    assert on_progress.stop.wait(10)\n"
        "    raise BuildError('the build was stopped', fix='run it again')\n"
        "module.build = build\n"
        "sys.argv = ['edgert', 'build', 'hello', '--board', 'orin-nano-8gb']\n"
        "from edgert.__main__ import main; main()\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 130 and "the build was stopped" in done.stderr, done.stderr


def test_the_third_signal_ends_it_even_in_a_call_of_a_library() -> None:
    program = (
        "import hashlib, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import edgert.validation as module\n"
        "def validate(*_, **__):\n"
        "    print('ready', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha512', b'', b'', 2**31 - 1)\n"
        "module.validate = validate\n"
        "sys.argv = ['edgert', 'validate', 'hello']\n"
        "from edgert.__main__ import main; main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for _ in range(3):
            if process.poll() is None:  # else the first came just before the library's call
                process.send_signal(signal.SIGINT)
                time.sleep(0.1)
        try:
            assert process.wait(10) == 130
        finally:
            process.kill()
