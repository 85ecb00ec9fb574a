"""Workers end together: by failure, by signal, by exception; and nothing is left behind."""

import re
import signal
import sys

import pytest
from processes import LAUNCH, TIMEOUT, eventually, is_gone, read_until, run, started, with_grace, write

from bigbatch.cli import launch

READY = ["[worker 0] ready", "[worker 1] ready"]


def assert_gone(folder):
    assert is_gone(folder, 0)
    assert is_gone(folder, 1)


@pytest.mark.parametrize("failing", [0, 1])
def test_the_first_failure_ends_all_with_its_exit_code(failing, tmp_path):
    script = write(
        tmp_path,
        f"""
        if index != {failing}:
            forever()
        wait_for("ready{1 - failing}")
        sys.exit("no luck" if index == 0 else 7)
        """,
    )
    done = run([*LAUNCH, script])
    code = [1, 7][failing]
    assert done.returncode == code
    message = rf"^Every worker must end with exit code 0\. Received: worker {failing} failed with exit code {code}\. It"
    assert len(re.findall(message, done.stderr, re.MULTILINE)) == done.stderr.count("Received:") == 1
    if failing == 0:  # its last words come before ours
        assert done.stderr.startswith("[worker 0] no luck\nEvery")
    assert_gone(tmp_path)


def test_a_worker_that_will_not_end_is_killed(tmp_path):
    script = write(
        tmp_path,
        """
        if index == 0:
            wait_for("ready1")
            sys.exit(3)
        signal.signal(signal.SIGTERM, lambda *_: print("asked"))
        forever()
        """,
    )
    done = run(with_grace(0.3, script))
    assert done.returncode == 3
    assert done.stdout.splitlines() == ["[worker 1] ready", "[worker 1] asked"]
    assert_gone(tmp_path)


def test_a_worker_that_ends_well_does_not_stop_the_others(tmp_path):
    script = write(tmp_path, "wait_for('first.done') if index else (folder / 'first.done').touch()\nprint('end')")
    done = run([*LAUNCH, script])
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[worker 0] end", "[worker 1] end"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, 35], ids=["KILL", "SEGV", "real_time"])
def test_killed_by_a_signal(number, tmp_path):
    code = f"index or forever()\nwait_for('ready0')\nos.kill(os.getpid(), {int(number)})"
    done = run([*LAUNCH, write(tmp_path, code)])
    assert done.returncode == 128 + number
    assert f"worker 1 failed with exit code {128 + number} (signal {int(number)})" in done.stderr
    assert_gone(tmp_path)


PASSED_ON = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


@pytest.mark.parametrize("number", PASSED_ON, ids=lambda number: number.name)
def test_signals_are_passed_on(number, tmp_path):
    with started([*LAUNCH, write(tmp_path, "forever()")]) as process:
        read_until(process.stdout, READY)
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT) == 128 + number
    assert_gone(tmp_path)


@pytest.mark.parametrize("number", PASSED_ON, ids=lambda number: number.name)
def test_workers_may_end_well_after_a_signal(number, tmp_path):
    code = f"signal.signal({int(number)}, lambda number, _: (print('got', number), sys.exit(0)))\nforever()"
    with started([*LAUNCH, write(tmp_path, code)]) as process:
        read_until(process.stdout, READY)
        process.send_signal(number)
        read_until(process.stdout, [f"[worker 0] got {int(number)}", f"[worker 1] got {int(number)}"])
        assert process.wait(timeout=TIMEOUT) == 0
        assert process.stderr.read() == ""


def test_one_that_ends_after_a_signal_does_not_hurry_the_others(tmp_path):
    script = write(
        tmp_path,
        """
        def finish(*_):
            if index == 0:
                sys.exit(5)
            print("saving")
            wait_for("seen")
            print("saved")
            sys.exit(6)

        signal.signal(signal.SIGTERM, finish)
        forever()
        """,
    )
    with started(with_grace(1000, script)) as process:
        read_until(process.stdout, READY)
        process.terminate()
        read_until(process.stdout, ["[worker 1] saving"])
        assert "worker 0 failed with exit code 5" in process.stderr.readline()
        (tmp_path / "seen").touch()
        read_until(process.stdout, ["[worker 1] saved"])
        assert process.wait(timeout=TIMEOUT) == 5


STUBBORN = """
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: print("asked"))
forever()
"""
ASKED = ["[worker 0] asked", "[worker 1] asked"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_second_signal_kills(number, tmp_path):
    with started(with_grace(1000, write(tmp_path, STUBBORN))) as process:
        read_until(process.stdout, READY)
        process.send_signal(number)
        read_until(process.stdout, ASKED)
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT) == 137
    assert_gone(tmp_path)


def test_without_a_second_signal_the_grace_ends(tmp_path):
    with started(with_grace(0.3, write(tmp_path, STUBBORN))) as process:
        read_until(process.stdout, READY)
        process.terminate()
        read_until(process.stdout, ASKED)
        assert process.wait(timeout=TIMEOUT) == 137
    assert_gone(tmp_path)


def test_the_keyboard_reaches_workers_only_through_us(tmp_path):
    code = "print(os.getsid(0) == os.getpgid(0) == os.getpid(), sys.stdin.read() == '')"
    done = run([*LAUNCH, write(tmp_path, code)])
    assert sorted(done.stdout.splitlines()) == ["[worker 0] True True", "[worker 1] True True"]


def test_what_is_ignored_stays_ignored(tmp_path):
    code = "signal.signal(signal.SIGHUP, lambda *_: sys.exit(9))\nprint('ready')\nwait_for('seen')"
    nohup = f"import signal, os; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv({LAUNCH[0]!r}, {{!r}})"
    command = [*LAUNCH, write(tmp_path, code)]
    with started([sys.executable, "-c", nohup.format(command)]) as process:
        read_until(process.stdout, READY)
        process.send_signal(signal.SIGHUP)
        (tmp_path / "seen").touch()
        assert process.wait(timeout=TIMEOUT) == 0


GRANDCHILD = """
if os.fork() == 0:
    hold(f"child{index}")
    forever()
wait_for("ready0")
wait_for("ready1")
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os.kill(os.getpid(), 9)"], ids=["well", "failed", "killed"])
def test_what_a_worker_has_started_ends_with_it(end, tmp_path):
    run([*LAUNCH, write(tmp_path, GRANDCHILD + end)])
    assert eventually(lambda: is_gone(tmp_path, "child0") and is_gone(tmp_path, "child1"))


IN_BETWEEN = """
import os, pathlib, signal, sys, time
from bigbatch.cli.launch import tf_config
from bigbatch.cli.workers import run_together

def environments():
    yield dict(os.environ, TF_CONFIG=tf_config([1, 2], 0))
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    {}
    yield dict(os.environ, TF_CONFIG=tf_config([1, 2], 1))

sys.exit(run_together([sys.executable, sys.argv[2]], environments(), 1000))
"""


def run_in_between(code, folder):
    """Runs two workers, and some code after the first was started and before the second is."""
    script = write(folder, "forever()")
    return run([sys.executable, "-c", IN_BETWEEN.format(code), str(folder / "ready0"), script])


def test_an_exception_leaves_nothing_behind(tmp_path):
    done = run_in_between("raise RuntimeError('in between')", tmp_path)
    assert done.stderr.endswith("RuntimeError: in between\n")
    assert is_gone(tmp_path, 0)


def test_a_signal_reaches_those_who_start_after_it(tmp_path):
    done = run_in_between("os.kill(os.getpid(), signal.SIGTERM)", tmp_path)
    assert done.returncode == 143
    assert is_gone(tmp_path, 0)


def test_signal_handlers_are_put_back():
    before = [signal.getsignal(number) for number in PASSED_ON]
    assert launch.launch([sys.executable, "-c", ""], num_workers=1) == 0
    assert [signal.getsignal(number) for number in PASSED_ON] == before
