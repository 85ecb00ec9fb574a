"""What every worker is given: its place in the cluster, its arguments; and what the command line refuses."""

import json
import os
import re
import sys

import pytest
from processes import LAUNCH, run, write

from bigbatch.cli import launch


def printed(text):
    """The lines of each worker."""
    lines = {}
    for line in text.splitlines():
        index, rest = re.fullmatch(r"\[worker (\d+)\] (.*)", line).groups()
        lines.setdefault(int(index), []).append(rest)
    return lines


def test_every_worker_knows_the_cluster_and_its_place(tmp_path):
    done = run([*LAUNCH, "--workers", "3", write(tmp_path, "print(os.environ['TF_CONFIG'])")])
    assert (done.returncode, done.stderr) == (0, "")
    configs = {index: json.loads(line) for index, (line,) in printed(done.stdout).items()}
    assert {index: config["task"] for index, config in configs.items()} == {
        index: {"type": "worker", "index": index} for index in range(3)
    }
    clusters = [config["cluster"] for config in configs.values()]
    assert clusters[0] == clusters[1] == clusters[2]
    hosts, ports = zip(*(address.split(":") for address in clusters[0]["worker"]))
    assert set(hosts) == {"127.0.0.1"}
    assert len(set(ports)) == 3


def test_many_ports_are_distinct():
    ports = launch.free_ports(200)
    assert len(set(ports)) == 200
    assert min(ports) > 0


def test_there_are_two_workers_unless_you_say(tmp_path):
    done = run([*LAUNCH, write(tmp_path, "print('here')")])
    assert printed(done.stdout) == {0: ["here"], 1: ["here"]}


def test_the_rest_of_the_environment_is_kept(tmp_path):
    code = "print(os.environ['MINE'], os.environ['PYTHONUNBUFFERED'], sys.executable)"
    done = run([*LAUNCH, "--workers", "1", write(tmp_path, code)], MINE="kept")
    assert printed(done.stdout) == {0: [f"kept 1 {sys.executable}"]}


ARGUMENTS = ["--epochs", "3", "--workers", "9", "-m", "--", "-h", "two words", ""]


@pytest.mark.parametrize("before", [[], ["--"], ["--workers=1"], ["--workers", "1", "--"]], ids=" ".join)
def test_arguments_behind_the_script_are_the_scripts(before, tmp_path):
    done = run([*LAUNCH, *before, write(tmp_path, "print(json.dumps(sys.argv[1:]))"), *ARGUMENTS])
    lines = printed(done.stdout)
    assert len(lines) == (1 if "1" in str(before) else 2)
    assert [json.loads(line) for line in lines[0]] == [ARGUMENTS]


@pytest.mark.parametrize("before", [[], ["--workers", "2"]], ids=" ".join)
def test_a_module_is_run_like_a_script(before, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("import json, sys; print(__name__, json.dumps(sys.argv[1:]))")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run([*LAUNCH, *before, "-m", "package.module", *ARGUMENTS], PYTHONPATH=path)
    assert printed(done.stdout) == {index: [f"__main__ {json.dumps(ARGUMENTS)}"] for index in range(2)}


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "²"])
def test_workers_are_counted_in_positive_integers(text):
    match = rf"^`--workers` must be a positive integer\. Received: --workers='{re.escape(text)}'\. Use 2 for"
    with pytest.raises(ValueError, match=match):
        launch.require_workers(text)


def test_a_script_must_exist(tmp_path):
    path = str(tmp_path / "trian.py")
    match = rf"^The script must exist\. Received: script='{re.escape(path)}'\. Check the path, .*`-m`"
    with pytest.raises(ValueError, match=match):
        launch.require_command([path], module=False)


@pytest.mark.parametrize("module", [False, True])
def test_something_must_be_run(module):
    with pytest.raises(ValueError, match=r"must be told what to run\. Received: no script\. Use `bigbatch launch tr"):
        launch.require_command([], module=module)


MISTAKES = {
    "no_workers": (["--workers", "0", __file__], "`--workers` must be a positive integer"),
    "no_such_script": (["no_such_script.py"], "The script must exist"),
    "nothing": ([], "must be told what to run"),
    "only_dashes": (["--"], "must be told what to run"),
    "unknown_option": (["--epochs", "3", __file__], "unrecognized arguments: --epochs"),
    "abbreviation": (["--work", "3", __file__], "unrecognized arguments: --work"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_with_two_and_start_nothing(name, capfd):
    arguments, message = MISTAKES[name]
    with pytest.raises(SystemExit) as caught:
        launch.main(arguments)
    assert caught.value.code == 2
    output = capfd.readouterr()
    assert message in output.err
    assert output.out == ""
    assert "[worker" not in output.err


def test_tensorflow_is_not_imported():
    code = (
        "import sys, bigbatch.__main__, bigbatch.cli.launch; sys.exit(bool({'tensorflow', 'numpy'} & set(sys.modules)))"
    )
    assert run([sys.executable, "-c", code]).returncode == 0
