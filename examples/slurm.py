"""The training of `workers.py` under Slurm: `srun --ntasks 2 python examples/slurm.py`.

TensorFlow's resolver reads what `srun` has set; it is handed on as TF_CONFIG, which is what everything else reads.
"""

import json
import os

import tensorflow as tf
from workers import train


def tf_config(port_base=18888):
    # The resolver counts tasks by their GPUs. Without any, pretend that every task has one.
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=port_base, gpus_per_node=int(os.environ["SLURM_STEP_NUM_TASKS"]), gpus_per_task=1, auto_set_gpu=False
    )
    cluster = resolver.cluster_spec().as_dict()
    task_type, task_index = resolver.get_task_info()
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": task_index}})


if __name__ == "__main__":
    os.environ["TF_CONFIG"] = tf_config(int(os.environ.get("PORT_BASE", "18888")))
    model, history = train()
    total = sum(float(abs(weight).sum()) for weight in model.get_weights())
    print(f"rank {os.environ['SLURM_PROCID']}: loss {history['loss'][-1]:.6f}, weights {total.hex()}")
