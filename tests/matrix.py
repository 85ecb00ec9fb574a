"""Runs tests/loops on old and new TensorFlow, each in its own environment, with the wheel that we ship.

    python tests/matrix.py [name ...]

Environments are kept in .matrix/ and made anew when their requirements change. Ends with 1 if a test failed or an
interpreter is missing: what was not run is not known to work.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".matrix"
OLD = ["protobuf==3.20.3", "numpy==1.16.6", "gast==0.2.2", "h5py==2.10.0"]


@dataclass(frozen=True)
class Row:
    """One environment: any of the interpreters will do."""

    pythons: tuple[str, ...]
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()


ROWS = {
    "tensorflow-1.14": Row(("3.7",), ("tensorflow==1.14.0", *OLD)),
    "tensorflow-2.0": Row(("3.7",), ("tensorflow==2.0.4", *OLD)),
    "tensorflow-2.15": Row(("3.11", "3.10", "3.9"), ("tensorflow-cpu==2.15.1",)),
    "keras-3.0": Row(("3.9", "3.10", "3.11"), ("tensorflow-cpu==2.16.2", "keras==3.0.5")),
    # tf_keras asks for `tensorflow`, which `tensorflow-cpu` is.
    "newest": Row(("3.13", "3.12", "3.11"), ("tensorflow-cpu>=2.21", "keras>=3.15"), ("tf_keras",)),
}

VERSIONS = """
import json, sys, tensorflow as tf
try:
    import keras
except ImportError:
    keras = tf.keras  # before TensorFlow 2.6 Keras was inside of it
print(json.dumps({"Python": sys.version.split()[0], "TensorFlow": tf.__version__, "Keras": keras.__version__}))
"""


def interpreter(pythons):
    """On PATH or from pyenv, whether pyenv is active or not."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in pythons:
        for candidate in [
            shutil.which(f"python{version}"),
            *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True),
        ]:
            # pyenv puts shims on PATH that fail unless their version is chosen.
            if candidate and run([candidate, "--version"]).returncode == 0:
                return str(candidate)
    return None


def run(command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def must(command):
    done = run(command)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(name, row, python):
    home = HOME / name
    stamp, wanted = home / "requirements", hashlib.sha256(repr((row, python)).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        must([python, "-m", "venv", home])
        must([home / "bin/pip", "install", "--quiet", "pytest", *row.requirements])
        if row.without_dependencies:
            must([home / "bin/pip", "install", "--quiet", "--no-deps", *row.without_dependencies])
        stamp.write_text(wanted)
    return home / "bin/python"


def wheel():
    shutil.rmtree(HOME / "wheel", ignore_errors=True)
    must([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", HOME / "wheel", ROOT])
    return next((HOME / "wheel").glob("*.whl"))


def outcome(name, row, package):
    """Returns what happened, in a few words, and whether it was good."""
    found = interpreter(row.pythons)
    if found is None:
        return f"NOT RUN: no Python {' or '.join(row.pythons)} on PATH or in ~/.pyenv/versions", False
    python = environment(name, row, found)
    must([python, "-m", "pip", "install", "--quiet", "--force-reinstall", package])
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    versions = json.loads(run([python, "-c", VERSIONS], env=quiet).stdout.splitlines()[-1])
    errors = HOME / f"{name}.errors"
    errors.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-o", "addopts=", "-o", "filterwarnings=ignore", "-p", "no:cacheprovider"]
    done = run(
        [*command, "--show-capture=no", "."], cwd=ROOT / "tests/loops", env={**quiet, "BIGBATCH_ERRORS": str(errors)}
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    worst = (
        max(json.loads(line)["error"] for line in errors.read_text().splitlines()) if errors.exists() else float("nan")
    )
    described = ", ".join(f"{what} {version}" for what, version in versions.items())
    return f"{described}: {done.stdout.splitlines()[-1]}; worst error {worst:.0e}", done.returncode == 0


def main():
    names = sys.argv[1:] or list(ROWS)
    HOME.mkdir(exist_ok=True)
    package = wheel()
    results = {}
    for name in names:
        print(f"{name} ...", flush=True)
        results[name] = outcome(name, ROWS[name], package)
    for name, (described, _) in results.items():
        print(f"{name:16} {described}")
    sys.exit(not all(good for _, good in results.values()))


if __name__ == "__main__":
    main()
