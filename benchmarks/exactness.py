"""The worst error of every case in the test suite, relative to the size of the update, in float64.

    python benchmarks/exactness.py

Or, for a run of the suite that is made anyway:

    BIGBATCH_ERRORS=errors.jsonl make test; python benchmarks/exactness.py errors.jsonl
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(path):
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "tests/training", "tests/distributed"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"BIGBATCH_ERRORS": str(path)}, check=True)


def report(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    cases = defaultdict(list)
    for row in rows:
        file, test, parameters = re.match(r".*/test_(\w+)\.py::(\w+)(?:\[(.*)\])?", row["test"]).groups()
        cases[file, (parameters or test).split("-")[0]].append(row["error"])
    for (file, case), errors in sorted(cases.items()):
        print(f"{file:14} {case:44} {max(errors):.1e}  over {len(errors)}")
    print(f"worst of {len(rows)}: {max(row['error'] for row in rows):.1e}")


def main():
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "errors.jsonl"
        run(path)
        report(path)


if __name__ == "__main__":
    main()
