"""`import bigbatch` is light, and names say what they need."""

import re
import subprocess
import sys
from pathlib import Path

import big_batch
import pytest

import bigbatch


def run(code):
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def test_importing_imports_neither_tensorflow_nor_keras():
    done = run("import sys, bigbatch; sys.exit(bool({'tensorflow', 'keras', 'tf_keras', 'numpy'} & set(sys.modules)))")
    assert done.returncode == 0, done.stdout.decode()


def test_the_names_for_custom_loops_import_no_keras():
    names = (
        "bigbatch.GradientAccumulator, bigbatch.split, bigbatch.windows, bigbatch.schedules, bigbatch.AccumulationError"
    )
    code = "import sys, bigbatch; {}; sys.exit('keras' in sys.modules)".format(names)  # noqa: UP032
    # TensorFlow itself imports Keras here and there.
    plain = run("import sys, tensorflow; sys.exit('keras' in sys.modules)")
    assert run(code).returncode == plain.returncode


def test_all_names_are_sorted_and_there():
    assert sorted(bigbatch.__all__) == bigbatch.__all__ == dir(bigbatch)


def test_the_script_for_all_versions_runs():
    page = Path(__file__).parents[2] / "docs" / "custom-loops.md"
    script = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[-1]
    assert "AdamOptimizer" in script
    done = run(script)
    assert done.returncode == 0, done.stdout.decode()


if big_batch.VERSION < (2, 16):

    @pytest.mark.parametrize("name", ["accumulate", "release"])
    def test_what_needs_keras_3_says_so(name):
        with pytest.raises(ImportError, match=r"needs Keras 3.12 or later. Received: keras="):
            getattr(bigbatch, name)
