"""The worst error of every case in the test suite, relative to the size of the update, in float64.

python benchmarks/exactness.py [pytest arguments]
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


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "errors.jsonl"
        command = [sys.executable, "-m", "pytest", "-n", "2", "tests/training", *sys.argv[1:]]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"BIGBATCH_ERRORS": str(path)}, check=True)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    cases = defaultdict(list)
    for row in rows:
        file, test, parameters = re.match(r".*/test_(\w+)\.py::(\w+)(?:\[(.*)\])?", row["test"]).groups()
        cases[file, (parameters or test).split("-")[0]].append(row["error"])
    for (file, case), errors in sorted(cases.items()):
        print(f"{file:14} {case:40} {max(errors):.1e}  over {len(errors)}")
    print(f"worst of {len(rows)}: {max(row['error'] for row in rows):.1e}")


if __name__ == "__main__":
    main()
