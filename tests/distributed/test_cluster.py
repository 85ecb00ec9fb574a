"""`MultiWorkerMirroredStrategy` with real processes: equal to one device, and bit-identical among the workers."""

from functools import cache
from pathlib import Path

import cases
import keras
import numpy as np
import pytest
from launching import launched
from oracle import assert_same_logs, record, relative_error

pytestmark = pytest.mark.xdist_group("workers")  # they train once, for all tests here
PROGRAM = Path(__file__).with_name("train.py")
CASES = {2: [*cases.CASES, "custom_loop"], 3: ["micro_batches", "one_worker_has_nothing", "windows", "custom_loop"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function from the number of workers to the folder with what they have learned."""

    @cache
    def folder_of(num_workers):
        folder = tmp_path_factory.mktemp("workers")
        done = launched(num_workers, PROGRAM, folder, *CASES[num_workers])
        assert done.returncode == 0, done.stderr[-3000:]
        return folder

    return folder_of


def load(folder, name, worker):
    with np.load(folder / f"{name}-{worker}.npz", allow_pickle=True) as arrays:
        state = dict(arrays)
        return state.pop("logs")[0], state


def on_one_device(name):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)
    if name == "custom_loop":
        model, logs = cases.custom_loop_on_one_device(), {}
    else:
        model = cases.build(name)
        logs = cases.fit(name, model, cases.CASES[name][4])
    return logs, [v.numpy() for v in model.variables + model.optimizer.variables]


@pytest.mark.parametrize(("num_workers", "name"), [(number, name) for number in CASES for name in CASES[number]])
def test_equals_one_device(num_workers, name, trained):
    folder = trained(num_workers)
    logs, state = load(folder, name, 0)
    their_logs, theirs = on_one_device(name)
    error = relative_error(state.values(), theirs)
    assert error < 1e-10
    record(error)
    assert_same_logs(logs, their_logs)
    for worker in range(1, num_workers):
        others_logs, others = load(folder, name, worker)
        assert others_logs == logs or np.isnan(logs["loss"]).any()
        assert all(np.array_equal(state[path], others[path]) for path in state)
