"""Who is exact where: the error of every system in every case, relative to the size of what should have happened.

    python benchmarks/truth.py [--rival PYTHON] [--output benchmarks/results/truth.json]

The reference is plain Keras on the joined batches, on one device, in the version of the system; rows of an embedding
are added up first, as no version of Keras does. Rounding is about 1e-7. Systems that raise get "raises"; what a system
does not claim to do is "-". Every system and case runs in a process of its own.
"""

import json
import subprocess
import sys

from apart import attempt
from measuring import error, moved
from results import facts, groups_of, parser_of, save

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
    return error_of(case, model)


def compiled(case, model, optimizer):
    from tensorflow import keras

    by_weights = case.loss == "mean_with_sample_weight"
    loss = keras.losses.MeanSquaredError(reduction=case.loss) if by_weights else case.loss
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    model.compile(optimizer, loss, run_eagerly=case.eagerly)
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
        gradients = tape.gradient(loss, model.trainable_variables)
        found = [pair for pair in zip(gradients, model.trainable_variables) if pair[0] is not None]
        model.optimizer.apply_gradients([(tf.convert_to_tensor(gradient), variable) for gradient, variable in found])
    return model


def trained(case, system):
    import contenders

    model, optimizer = case.model(), case.optimizer()
    if system == "tutorial":
        return by_tutorial(case, compiled(case, model, optimizer))
    if system == "keras_steps":
        optimizer = contenders.with_steps(optimizer, case.number)
    elif system == "rival_model":
        model = contenders.wrapped_model(model, case.number)
    elif system == "rival_optimizer":
        optimizer = contenders.wrapped_optimizer(optimizer, case.number)
    elif system == "bigbatch_windows":
        import bigbatch

        bigbatch.accumulate(model, batches_per_update=case.number, **case.settings)
    compiled(case, model, optimizer).fit(dataset(case.batches()), epochs=case.epochs, verbose=0)
    return model


def by_tutorial(case, model):
    """Applies every `number` batches, and keeps what is left at the end of an epoch for the next."""
    from contenders import gathering

    def loss_of(x, y, *weights):
        return model.compute_loss(x, y, model(x, training=True), *weights)

    add, apply = gathering(model.trainable_variables, case.number, model.optimizer, loss_of)
    for _ in range(case.epochs):
        for place, batch in enumerate(dataset(case.batches())):
            add(*batch)
            if (place + 1) % case.number == 0:
                apply()
    return model


def looked_at(case, model):
    variables = model.trainable_variables
    if case.looks_at == "averages" and getattr(model, "optimizer", None) is not None:
        variables = model.optimizer._model_variables_moving_average
    if case.looks_at == "statistics":
        variables = [each for each in model.non_trainable_variables if "moving" in each.name]
    return [each.numpy() for each in variables]


def error_of(case, model):
    before = looked_at(case, case.model())
    return error(moved(looked_at(case, model), before), moved(looked_at(case, reference(case)), before))


def on_two_machines(system):
    """One line per worker; the first one tells the error."""
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
    print("RESULT", json.dumps(error_of(case, model)))


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    from truth_cases import CASES

    result = {"facts": facts(arguments.rival), "cases": {}}
    for case in list(CASES)[1:2] if arguments.quick else CASES:
        found = {}
        for python, group in groups_of(OURS, RIVAL, arguments.rival):
            found |= {system: attempt("truth.measure", case, system, python=python) for system in group}
        result["cases"][case] = {system: "raises" if isinstance(each, dict) else each for system, each in found.items()}
        print(case, found, flush=True)
    if not arguments.quick:
        result["cases"][WORKERS] = {system: on_two_machines(system) for system in OURS if system != "tutorial"}
    save(result, arguments.output)
    from report import truth

    print(truth(result))


if __name__ == "__main__":
    main()
