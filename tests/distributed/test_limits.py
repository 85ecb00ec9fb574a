"""Workers with different limits of memory agree on a size, or all of them give up."""

import pickle
from functools import cache
from pathlib import Path

import limited_worker
import numpy as np
import pytest
from launching import launched
from oracle import assert_same_logs, record, relative_error

pytestmark = pytest.mark.xdist_group("workers")  # every case is trained once, for all tests here
# In MiB, of both workers. Each takes 40 for its 16 samples of "fits", and 25 for 8 of them. The first one has two
# of the samples of "uneven", for which it takes 111, and 57 for one of them; so does "not_one_sample".
LIMITS = {"fits": (3000, 31), "uneven": (80, 3000), "not_one_sample": (3000, 31)}
FOUND = [
    ("fits", "16 samples at a time do not fit, 8 do"),
    ("uneven", "2 samples at a time do not fit, 1 do"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function from the case to what each of two workers has left."""

    @cache
    def of_case(name):
        folder = tmp_path_factory.mktemp(name)
        done = launched(2, limited_worker.__file__, folder, name, *LIMITS[name])
        assert done.returncode == 0, done.stderr[-3000:]
        return [pickle.loads(Path(folder, str(index)).read_bytes()) for index in range(2)]

    return of_case


@pytest.mark.parametrize(("name", "found"), FOUND)
def test_workers_agree(name, found, trained):
    first, second = trained(name)
    assert first["failed"] == second["failed"] == ""
    assert first["told"] == second["told"]
    assert [line.split(" (")[0] for line in first["told"]] == [found]
    assert first["logs"] == second["logs"]
    for one, other in zip(first["state"], second["state"], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["fits", "uneven"])
def test_equals_one_device(name, trained):
    ours = trained(name)[0]
    limited_worker.begin()
    model = limited_worker.build()
    initial = limited_worker.state_of(model)
    logs = limited_worker.fit(name, model)
    theirs = limited_worker.state_of(model)
    assert not any(np.array_equal(before, after) for before, after in zip(initial[: len(model.weights)], theirs))
    error = relative_error(ours["state"], theirs)
    assert error < 1e-10
    record(error)
    assert_same_logs(ours["logs"], logs)


def test_all_give_up_where_one_sample_does_not_fit_one_of_them(trained):
    for worker in trained("not_one_sample"):
        assert worker["failed"].startswith(
            "AccumulationError: One sample at a time must fit the memory of every device"
        )
        for before, after in zip(worker["initial"], worker["state"], strict=True):
            np.testing.assert_array_equal(before, after)
