"""Results that look like those of the demo, without its minutes."""

from dataclasses import replace

from bigbatch.cli.demo_results import Distance, Peak, Results, Run, Update

MIB = 2**20
SAMPLES = (512, 1024, 1536, 1797, 2309, 2821, 3333, 3594)


def run(name, *, size=512, budget=64 * MIB, peak=16 * MIB, shift=0.0, applied=range(1, 9)):
    updates = tuple(
        Update(samples, 2.3 / number + shift, 0.1 * number, 0.4, peak, num_applied)
        for number, (samples, num_applied) in enumerate(zip(SAMPLES, applied), 1)
    )
    return Run(name, size, budget, updates, loss=0.25 + shift, accuracy=0.9)


STARVED = Run("plain Keras, small budget", 512, 64 * MIB, (), error="OOM when allocating <tensor> & more")
DISTANCES = tuple(
    Distance(number, samples, number * 1e-8, 1e-8 if number < 4 else 2e-2) for number, samples in enumerate(SAMPLES, 1)
)
RESULTS = Results(
    batch_size=512,
    micro_batch_size=32,
    epochs=2,
    budget=64 * MIB,
    starved=STARVED,
    plain=run("plain Keras, with room", budget=None, peak=167 * MIB),
    ours=run("bigbatch, small budget", size=32),
    built_in=run("Keras' own accumulation", size=32, shift=0.1, applied=(1, 2, 3, 3, 4, 5, 6, 7)),
    peaks=tuple(Peak(size, (4 + size // 4) * MIB) for size in (8, 32, 128, 512)),
    distances=DISTANCES,
    seconds=90.0,
    versions="bigbatch 0.1.0",
)


def changed(**changes):
    return replace(RESULTS, **changes)
