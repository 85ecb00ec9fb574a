"""Trials in a process of their own, where memory that runs out hurts nobody, and where the CPU's allocator counts.

The model travels as Keras saves it. What it is made of must be importable there: a class of a notebook or of
`__main__` is not, and then there are no trials apart.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from bigbatch.diagnostics.trials import Measurement, Trials
from bigbatch.training import keras_private
from bigbatch.training.memory import running_out

_MODEL, _DATA, _SETTINGS = "model.keras", "data.pickle", "settings.json"


class CannotTravel(Exception):
    """Why a model cannot be made anew elsewhere."""


class Apart:
    """The same as `Trials`, elsewhere, until it is closed.

    Args:
        model, data, batch_size: as there.
        folder: an empty one, to leave them in.
        limit: the bytes that the allocator may have; `None`: all there are.

    Raises:
        CannotTravel: if the model could not be loaded there.
    """

    name = "the BFC allocator of the CPU, in a process of its own"

    def __init__(self, model: Any, data: Any, batch_size: int, folder: Path, limit: int | None = None) -> None:
        settings = {"batch_size": batch_size, "path": sys.path, "objects": _objects(model)}
        try:
            model.save(folder / _MODEL)
        except Exception as error:
            raise CannotTravel(f"saving failed: {error}") from error
        (folder / _DATA).write_bytes(pickle.dumps(data))
        (folder / _SETTINGS).write_text(json.dumps(settings))
        allocator = {"TF_CPU_ALLOCATOR_USE_BFC": "1"}
        if limit is not None:
            allocator["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(max(1, limit // 2**20))
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", "from bigbatch.diagnostics.apart import serve; serve()", folder],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"} | allocator,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        if self._answer() != "ready":
            last_words = self._last_words()
            self.close()
            raise CannotTravel(last_words)

    def measure(self, size: int) -> Measurement | None:
        """One size, or `None` if memory runs out, whether TensorFlow or the operating system says so."""
        assert self._process.stdin is not None
        if self._process.poll() is not None:
            return None
        self._process.stdin.write(f"{size}\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Measurement(*answer) if answer else None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"its process ended with {self._process.wait()}"


def _objects(model: Any) -> list[str]:
    """The classes and functions that the model is made of and Keras does not know."""
    parts = [model, *keras_private.flatten_layers(model), model.loss, *model.metrics, model.optimizer]
    found = [part if callable(part) and hasattr(part, "__qualname__") else type(part) for part in parts]
    strangers = {
        f"{each.__module__}:{each.__qualname__}"
        for each in found
        if each.__module__.split(".")[0] not in ("keras", "builtins")
    }
    lost = [name for name in strangers if name.startswith("__main__:") or "." in name.split(":")[1]]
    if lost:
        raise CannotTravel(f"{', '.join(sorted(lost))} cannot be imported elsewhere")
    return sorted(strangers)


def serve() -> None:
    """The other side: answers every size that it reads with what it measures."""
    folder = Path(sys.argv[1])
    settings = json.loads((folder / _SETTINGS).read_text())
    sys.path[:] = settings["path"]
    # What a user's module prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    import keras

    from bigbatch.diagnostics import meters

    places = [place.split(":") for place in settings["objects"]]
    objects = {name: getattr(import_module(module), name) for module, name in places}
    trials = None
    with running_out():  # nor does any size fit where the model alone does not
        model = keras.saving.load_model(folder / _MODEL, custom_objects=objects)
        data = pickle.loads((folder / _DATA).read_bytes())
        trials = Trials(model, data, settings["batch_size"], meters.of_this_process())
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(trials and trials.measure(int(line))), file=answers, flush=True)
