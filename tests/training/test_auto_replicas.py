"""`micro_batch_size="auto"` under a real limit and `MirroredStrategy`: equal to one device with enough."""

from concurrent.futures import ThreadPoolExecutor

import limited_replicas
import numpy as np
import pytest
from limiting import run_limited
from oracle import assert_same_logs, record, relative_error

pytestmark = pytest.mark.xdist_group("memory")  # they train once, for all tests here
LIMIT = 43  # in MiB: two replicas take 57 with 17 samples each, and 29 with 8


@pytest.fixture(scope="module")
def trained():
    """What came of every way to reduce. A failed allocation waits ten seconds, so both processes run at a time."""
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda name: run_limited(limited_replicas.__file__, LIMIT, name), limited_replicas.ENGINES)
        return dict(zip(limited_replicas.ENGINES, results))


@pytest.fixture(scope="module")
def plain():
    """Whole batches on one device, with nothing of ours."""
    model = limited_replicas.build()
    return limited_replicas.fit(model), limited_replicas.values(model)


@pytest.mark.parametrize("engine", limited_replicas.ENGINES)
def test_reduces_once(engine, trained):
    [line] = trained[engine]["told"]
    assert line.startswith("17 samples at a time do not fit, 8 do")
    assert "1 failed" in line


@pytest.mark.parametrize("engine", limited_replicas.ENGINES)
def test_equals_one_device(engine, trained, plain):
    ours, (logs, theirs) = trained[engine], plain
    assert not any(np.array_equal(a, b) for a, b in zip(ours["before"], ours["after"]) if a.ndim)
    error = relative_error(ours["after"], theirs)
    assert error < 1e-10
    record(error)
    assert_same_logs(ours["logs"], logs)


@pytest.mark.parametrize("engine", limited_replicas.ENGINES)
def test_replicas_stay_equal(engine, trained):
    for first, second in trained[engine]["copies"]:
        np.testing.assert_array_equal(first, second)
