"""Lines stay whole and come at once, whatever a worker prints."""

import re
import subprocess

from hypothesis import given
from hypothesis import strategies as st
from processes import LAUNCH, TIMEOUT, is_gone, read_until, run, started, write

from bigbatch.cli.output import Lines

ALONE = [*LAUNCH, "--workers", "1"]


def lines(*pieces):
    cut = Lines()
    return [line for piece in pieces for line in cut.add(piece)] + cut.end()


def test_lines_end_where_a_bar_goes_back():
    assert lines(b"1/3\r2/3\b\b\b\r3/3\nend\r\n") == [b"1/3", b"2/3", b"3/3", b"end"]


def test_a_bar_that_begins_by_going_back_has_no_empty_line():
    assert lines(b"before\n\r1/2\r2/2\nafter\n") == [b"before", b"1/2", b"2/2", b"after"]


def test_empty_lines_are_lines():
    assert lines(b"\n\na\n\nb\r\n\nc") == [b"", b"", b"a", b"", b"b", b"", b"c"]


@given(st.lists(st.text("ab\n\r\b", min_size=1).map(str.encode), max_size=8))
def test_it_does_not_matter_where_bytes_are_cut(pieces):
    assert lines(*pieces) == lines(b"".join(pieces))


def test_streams_stay_apart_and_the_last_line_needs_no_end(tmp_path):
    script = write(tmp_path, "sys.stdout.write('out\\nlast'); sys.stderr.write('err\\n\\nlast')")
    done = run([*ALONE, script])
    assert done.stdout == "[worker 0] out\n[worker 0] last\n"
    assert done.stderr == "[worker 0] err\n[worker 0] \n[worker 0] last\n"


def test_lines_of_several_workers_never_mix(tmp_path):
    script = write(
        tmp_path,
        """
        text = (f"{index}" * 999 + "\\n").encode() * 500
        for start in range(0, len(text), 7777):  # cuts lines anywhere
            os.write(1, text[start:start + 7777])
            os.write(2, text[start:start + 7777])
        """,
    )
    done = run([*LAUNCH, "--workers", "3", script], stderr=subprocess.STDOUT, text=False)
    found = re.findall(rb"^\[worker (\d)\] (\d)\2{998}$", done.stdout, re.MULTILINE)
    assert len(found) == len(done.stdout.splitlines()) == 3 * 2 * 500
    assert all(name == digit for name, digit in found)


def test_bytes_that_are_no_text_come_through(tmp_path):
    script = write(tmp_path, "os.write(1, b'\\xff\\xfe\\x00\\n'); os.write(2, b'\\x80')")
    done = run([*ALONE, script], text=False)
    assert done.stdout == b"[worker 0] \xff\xfe\x00\n"
    assert done.stderr == b"[worker 0] \x80\n"


def test_a_progress_bar_shows_while_it_runs(tmp_path):
    script = write(tmp_path, "sys.stdout.write('1/9\\r2/9'); sys.stdout.write('\\b\\b\\b'); wait_for('seen')")
    with started([*ALONE, script]) as process:
        read_until(process.stdout, ["[worker 0] 1/9", "[worker 0] 2/9"])
        (tmp_path / "seen").touch()
        assert process.wait(timeout=TIMEOUT) == 0


def test_somebody_who_holds_the_pipe_is_not_awaited(tmp_path):
    script = write(
        tmp_path,
        """
        child = subprocess.Popen(["sleep", "100"], start_new_session=True)  # not of our group: it outlives us
        (folder / "pid").write_text(str(child.pid))
        child.returncode = 0  # Python warns of a child that nobody waits for
        sys.stdout.write("last")
        """,
    )
    with started([*ALONE, script]) as process:
        try:
            assert process.communicate(timeout=TIMEOUT) == ("[worker 0] last\n", "")
        finally:
            subprocess.run(["kill", (tmp_path / "pid").read_text()], check=True)


def test_when_nobody_reads_any_more_all_end(tmp_path):
    with started([*LAUNCH, write(tmp_path, "while True: print('more')")]) as process:
        read_until(process.stdout, ["[worker 0] more", "[worker 1] more"])
        process.stdout.close()
        assert process.wait(timeout=TIMEOUT) == 141
        assert process.stderr.read() == ""
    assert is_gone(tmp_path, 0)
    assert is_gone(tmp_path, 1)
