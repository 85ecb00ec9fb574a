"""Who is exact where: the error of every system in every case, relative to the size of what should have happened.

    python benchmarks/truth.py [--rival PYTHON] [--output benchmarks/results/truth.json]

The reference is plain Keras on the joined batches, on one device, in the version of the system; rows of an embedding
are added up first, as no version of Keras does. Rounding is about 1e-7. Systems that raise get "raises"; what a system
does not claim to do is "-". Every system and case runs in a process of its own.
"""

import argparse
import json
import sys
from pathlib import Path

from compare import call, facts, rival_of

OURS, RIVAL = ("bigbatch_windows", "keras_steps", "tutorial"), ("rival_model", "rival_optimizer")
WORKERS = "two machines"


def measure(case_name, system):
    """The error of one system in one case; runs in a process of its own."""
    import tensorflow as tf
    from tensorflow import keras
    from truth_cases import CASES

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    case = CASES[case_name]
    if case.loss == "mean_with_sample_weight" and not hasattr(keras, "version"):
        return "-"  # not in Keras 2
    if case.num_replicas > 1 and system == "tutorial":
        return "-"
    if case.num_replicas == 1:
        model = trained(case, system)
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = trained(case, system)
    return difference(looked_at(case, model), looked_at(case, reference(case)), looked_at(case, case.model()))


def compiled(case, model, optimizer):
    from tensorflow import keras

    by_weights = case.loss == "mean_with_sample_weight"
    loss = keras.losses.MeanSquaredError(reduction=case.loss) if by_weights else case.loss
    model.compile(optimizer, keras.losses.get(loss) if isinstance(loss, str) else loss)
    return model


def dataset(batches):
    """Batches of any sizes."""
    import tensorflow as tf

    spec = tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in batches[0])
    # Under `MirroredStrategy`, TensorFlow writes into memory that a generator hands out.
    data = tf.data.Dataset.from_generator(
        lambda: (tuple(part.copy() for part in batch) for batch in batches), output_signature=spec
    )
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))


def reference(case):
    """Plain Keras, update by update; eagerly, so that gradients can be made dense."""
    import tensorflow as tf

    model = compiled(case, case.model(), case.optimizer())
    model.optimizer.build(model.trainable_variables)
    for batch in case.joined() * case.epochs:
        x, y, *weights = map(tf.constant, batch)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), *weights)
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return model


def trained(case, system):
    if system == "tutorial":
        return by_tutorial(case)
    model, optimizer = case.model(), case.optimizer()
    if system == "keras_steps":
        config = optimizer.get_config() | {"gradient_accumulation_steps": case.number}
        optimizer = type(optimizer).from_config(config)
    elif system == "rival_model":
        from gradient_accumulator import GradientAccumulateModel

        model = GradientAccumulateModel(accum_steps=case.number, inputs=model.inputs, outputs=model.outputs)
    elif system == "rival_optimizer":
        from gradient_accumulator import GradientAccumulateOptimizer
        from tensorflow import keras

        older = getattr(keras.optimizers.legacy, type(optimizer).__name__)
        optimizer = GradientAccumulateOptimizer(older.from_config(older_config(optimizer)), accum_steps=case.number)
    elif system == "bigbatch_windows":
        import bigbatch

        bigbatch.accumulate(model, batches_per_update=case.number, **case.settings)
    compiled(case, model, optimizer).fit(dataset(case.batches()), epochs=case.epochs, verbose=0)
    return model


def older_config(optimizer):
    """What optimizers had before TensorFlow 2.11; what they did not have raises."""
    config = optimizer.get_config()
    if config.get("use_ema"):
        raise NotImplementedError("use_ema")
    known = [
        "learning_rate",
        "momentum",
        "nesterov",
        "beta_1",
        "beta_2",
        "epsilon",
        "amsgrad",
        "clipnorm",
        "global_clipnorm",
    ]
    return {name: value for name, value in config.items() if name in known and value is not None}


def by_tutorial(case):
    """Gathers `gradient / number`, applies every `number` batches, and forgets what is left at the end."""
    import tensorflow as tf

    model = compiled(case, case.model(), case.optimizer())
    variables = model.trainable_variables
    model.optimizer.build(variables)
    gathered = [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in variables]

    @tf.function(reduce_retracing=True)
    def add(x, y, *weights):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), *weights) / case.number
        for total, gradient in zip(gathered, tape.gradient(loss, variables)):
            total.assign_add(tf.convert_to_tensor(gradient))

    for _ in range(case.epochs):
        for place, batch in enumerate(dataset(case.batches())):
            add(*batch)
            if (place + 1) % case.number == 0:
                model.optimizer.apply_gradients(zip([tf.identity(total) for total in gathered], variables))
                for total in gathered:
                    total.assign(tf.zeros_like(total))
    return model


def looked_at(case, model):
    variables = model.trainable_variables
    if case.looks_at == "averages" and getattr(model, "optimizer", None) is not None:
        variables = model.optimizer._model_variables_moving_average
    if case.looks_at == "statistics":
        variables = [each for each in model.non_trainable_variables if "moving" in each.name]
    return [each.numpy() for each in variables]


def difference(ours, theirs, before):
    import numpy as np

    def norm(values):
        return sum(float(np.square(value.astype("float64")).sum()) for value in values) ** 0.5

    wrong = norm([a.astype("float64") - b.astype("float64") for a, b in zip(ours, theirs, strict=True)])
    return wrong / norm([b.astype("float64") - c.astype("float64") for b, c in zip(theirs, before, strict=True)])


def on_two_machines(system):
    """One line per worker; the first one tells the error."""
    import subprocess

    program = [__file__, "--worker", system]
    command = [sys.executable, "-m", "bigbatch", "launch", "--workers", "2", *program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    found = [line.split("RESULT", 1)[1] for line in done.stdout.splitlines() if "RESULT" in line]
    return json.loads(found[0]) if not done.returncode and found else "raises"


def worker(system):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from truth_cases import CASES

    case = CASES["two devices"]
    with strategy.scope():
        model = trained(case, system)
    found = difference(looked_at(case, model), looked_at(case, reference(case)), looked_at(case, case.model()))
    print("RESULT", json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival", type=rival_of)
    parser.add_argument("--quick", action="store_true", help="one case")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    from truth_cases import CASES

    groups = [(sys.executable, OURS)] + ([(arguments.rival, RIVAL)] if arguments.rival else [])
    result = {"facts": facts(arguments.rival), "cases": {}}
    for case in list(CASES)[1:2] if arguments.quick else CASES:
        found = {}
        for python, group in groups:
            found |= {system: call(python, "measure", case, system, module="truth") for system in group}
        result["cases"][case] = {system: "raises" if isinstance(each, dict) else each for system, each in found.items()}
        print(case, found, flush=True)
    if not arguments.quick:
        result["cases"][WORKERS] = {system: on_two_machines(system) for system in OURS if system != "tutorial"}
    if arguments.output:
        arguments.output.parent.mkdir(exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1))
    from report import truth

    print(truth(result))


if __name__ == "__main__":
    main()
