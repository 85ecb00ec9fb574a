"""What `verify` says of real models: ten of Keras' applications, and two backbones of KerasHub where it is installed.

    python benchmarks/applications.py [name ...]

Random weights, small pictures, 8 samples in micro-batches of 3.
"""

import sys
import time

import keras
import numpy as np

import bigbatch

APPLICATIONS = {
    "VGG16": 32,
    "VGG19": 32,
    "ConvNeXtTiny": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "EfficientNetB0": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "Xception": 71,
    "InceptionV3": 75,
}
BACKBONES = ("BertBackbone", "GPT2Backbone")


def application(name):
    size = APPLICATIONS[name]
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    random = np.random.default_rng(0)
    return model, random.uniform(0, 255, size=(8, size, size, 3)), random.integers(0, 10, size=8)


def backbone(name):
    import keras_hub

    layers = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    inside = getattr(keras_hub.models, name)(vocabulary_size=50, max_sequence_length=12, **layers)
    outputs = inside.output
    hidden = outputs["sequence_output"] if isinstance(outputs, dict) else outputs
    model = keras.Model(inside.input, keras.layers.Dense(50, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    inputs = {each.name: random.integers(0, 2, size=(8, 12)) for each in model.inputs}
    return model, inputs | {"token_ids": random.integers(1, 50, size=(8, 12))}, random.integers(0, 50, size=(8, 12))


def main():
    print(f"{'model':18}{'equal':>6}{'worst':>9}{'rounding':>10}{'updates':>9}{'seconds':>9}  cause; same draws in")
    for name in sys.argv[1:] or [*APPLICATIONS, *BACKBONES]:
        keras.utils.set_random_seed(0)
        start = time.perf_counter()
        report = bigbatch.verify(*(application if name in APPLICATIONS else backbone)(name), micro_batch_size=3)
        [row] = [row for row in report.table if row.kind == "gradient" and row.name == report.worst.variable]
        causes = "; ".join(f"{cause.kind} in {len(cause.parts)} places" for cause in report.causes)
        draws = f"; {len(report.replayed)} layers" if report.replayed else ""
        figures = f"{row.error:9.1e}{row.rounding:10.1e}{report.num_updates:9}{time.perf_counter() - start:9.0f}"
        print(f"{name:18}{'yes' if report.exact else 'no':>6}{figures}  {causes}{draws}", flush=True)


if __name__ == "__main__":
    main()
