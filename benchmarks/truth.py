"""Who is exact where: the error of every system in every case, relative to the size of what should have happened.

    python benchmarks/truth.py [--rival PYTHON] [--output benchmarks/results/truth.json]

The reference is plain Keras on the joined batches, on one device, in the version of the system; rows of an embedding
are added up first, as no version of Keras does. Rounding is about 1e-7. Systems that raise get "raises"; what a system
does not claim to do is "-". Every system and case runs in a process of its own.
"""

from apart import attempt, call
from measuring import error, moved
from results import facts, groups_of, parser_of_contest, save

OURS, RIVAL = ("bigbatch_windows", "keras_steps", "tutorial"), ("rival_model", "rival_optimizer")


def measure(case_name, system):
    """The error of one system in one case; runs in a process of its own."""
    from places import DEVICES, ONE, strategy_of
    from tensorflow import keras
    from truth_cases import CASES

    case = CASES[case_name]
    if case.loss == "mean_with_sample_weight" and not hasattr(keras, "version"):
        return "-"  # not in Keras 2
    if case.num_replicas > 1 and system == "tutorial":
        return "-"
    with strategy_of(ONE if case.num_replicas == 1 else DEVICES).scope():
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


def measure_on_workers(system):
    """The same of two workers that share batches; runs on both."""
    from places import WORKERS, strategy_of

    strategy = strategy_of(WORKERS)
    from truth_cases import CASES

    case = CASES["two devices"]
    with strategy.scope():
        model = trained(case, system)
    return error_of(case, model)


def note(result, case, found):
    print(case, found, flush=True)
    result["cases"][case] = {system: "raises" if isinstance(each, dict) else each for system, each in found.items()}


def main():
    arguments = parser_of_contest(__doc__).parse_args()
    from truth_cases import CASES

    result, run = {"facts": facts(), "cases": {}}, call if arguments.quick else attempt
    groups = groups_of(OURS[:1] if arguments.quick else OURS, RIVAL, arguments.rival)
    for case in list(CASES)[1:2] if arguments.quick else CASES:
        found = {}
        for python, group in groups:
            found |= {system: run("truth.measure", case, system, python=python) for system in group}
        note(result, case, found)
    if not arguments.quick:
        systems = [system for system in OURS if system != "tutorial"]
        note(result, "two workers", {each: run("truth.measure_on_workers", each, workers=2) for each in systems})
    save(result, arguments.output)
    from report import truth

    print(truth(result))


if __name__ == "__main__":
    main()
