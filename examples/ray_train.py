"""The training of `workers.py` under Ray Train, with two workers on this machine: `make example-ray`.

Ray starts the workers and sets TF_CONFIG; on a cluster, only `ray.init` and `ScalingConfig` change.
"""

import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="ray_"))
# Before Ray is imported: it reports its usage and writes to the home directory unless told otherwise.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", HOME=str(FOLDER), TF_CPP_MIN_LOG_LEVEL="3")
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

import numpy as np  # noqa: E402
import ray  # noqa: E402
import ray.train  # noqa: E402
from ray.train import RunConfig, ScalingConfig  # noqa: E402
from ray.train.tensorflow import TensorflowTrainer  # noqa: E402


def train_loop_per_worker(config):
    from workers import train

    model, history = train(config["epochs"])
    rank = ray.train.get_context().get_world_rank()
    np.savez(Path(config["folder"]) / f"weights-{rank}.npz", *model.get_weights())
    print(f"rank {rank}: loss {history['loss'][-1]:.6f}")
    ray.train.report({"loss": history["loss"][-1]})


def weights(rank):
    with np.load(FOLDER / f"weights-{rank}.npz") as arrays:
        return [arrays[name] for name in arrays.files]


def main():
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=80 * 2**20, _temp_dir=str(FOLDER))
    TensorflowTrainer(
        train_loop_per_worker,
        train_loop_config={"epochs": 2, "folder": str(FOLDER)},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="bigbatch", storage_path=str(FOLDER / "results")),
    ).fit()
    ray.shutdown()
    if not all(np.array_equal(a, b) for a, b in zip(weights(0), weights(1), strict=True)):
        sys.exit("the workers differ")
    print("Ray: both workers have the same weights, bit by bit")


if __name__ == "__main__":
    main()
