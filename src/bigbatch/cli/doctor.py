"""`bigbatch doctor`: versions, devices, memory, and what can work here. Runs without TensorFlow, and says so."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import bigbatch
from bigbatch.cli import tables
from bigbatch.cli.checks import CHECKS, INSTALL, Cannot, Check
from bigbatch.cli.running import build_parser, run
from bigbatch.core.bytes import readable

DESCRIPTION = "Tells versions, devices, memory, and whether each feature works here; fails if `accumulate` does not."
EXAMPLE = "  bigbatch doctor --json > doctor.json"


@dataclass(frozen=True)
class Feature:
    """What a check has found: that it works, or why not and the way out."""

    name: str
    works: bool
    found: str
    remedy: str
    is_needed: bool


@dataclass(frozen=True)
class Diagnosis:
    """What there is here, by name, and what can work."""

    here: dict[str, str]
    features: tuple[Feature, ...]

    @property
    def works(self) -> bool:
        """Whether all is there that `accumulate` needs."""
        return all(feature.works for feature in self.features if feature.is_needed)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"works": self.works})

    def __str__(self) -> str:
        lines = [f"{name:28} {value}" for name, value in self.here.items()]
        for each in self.features:
            lines.append(f"{each.name:28} {'works' if each.works else 'does not work'}: {each.found}. {each.remedy}")
        return "\n".join(line.rstrip() for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if `accumulate` cannot work here."""
    parser = build_parser("doctor", DESCRIPTION, EXAMPLE)
    options = parser.parse_args(arguments)
    diagnosis = run(parser, options.json, diagnose, show)
    return 0 if diagnosis.works else 1


def diagnose() -> Diagnosis:
    return Diagnosis(_versions() | _devices(), tuple(_feature(check) for check in CHECKS))


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "bigbatch": bigbatch.__version__}
    for name, distributions in {"TensorFlow": ("tensorflow", "tensorflow-cpu"), "Keras": ("keras",)}.items():
        found[name] = next(filter(None, map(_version, distributions)), "missing")
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, str]:
    try:
        import tensorflow as tf
    except ImportError as error:
        return {"devices": f"unknown: {error}"}
    from bigbatch.diagnostics.meters import free_bytes
    from bigbatch.training.memory import device, peak

    names = [each.name.split("device:")[-1] for each in tf.config.list_logical_devices()]
    counts = "counts bytes" if peak(device()) is not None else "does not count bytes"
    bfc = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "not set")
    return {
        "Keras backend": _backend(),
        "devices": ", ".join(names),
        "allocator": f"that of {device()} {counts} (TF_CPU_ALLOCATOR_USE_BFC: {bfc})",
        "memory free": f"{readable(free_bytes())} on {device()}",
    }


def _backend() -> str:
    try:
        import keras
    except ImportError as error:
        return f"unknown: {error}"
    return str(keras.config.backend()) if hasattr(keras.config, "backend") else "that of Keras 2"


def _feature(check: Check) -> Feature:
    def cannot(why: object, remedy: str) -> Feature:
        return Feature(check.name, False, str(why).splitlines()[0].rstrip("."), remedy, check.is_needed)

    try:
        return Feature(check.name, True, check.run(), "", check.is_needed)
    except Cannot as error:
        return cannot(error, error.remedy)
    except ModuleNotFoundError as error:
        extra = INSTALL.get((error.name or "").split(".")[0])
        remedy = f'`pip install "bigbatch[{extra}]"`' if extra else "Install it."
        return cannot(f"no module {error.name!r}", remedy)
    except Exception as error:  # whatever a broken installation raises is what is to be told
        return cannot(f"{type(error).__name__}: {error}", "")


def show(console: Any, diagnosis: Diagnosis) -> None:
    here = tables.table("", "", show_header=False)
    for name, value in diagnosis.here.items():
        here.add_row(name, tables.plain(value))
    features = tables.table("feature", "works", "found")
    for each in diagnosis.features:
        works = tables.verdict(each.works, "yes", "no")
        features.add_row(each.name, works, tables.plain(f"{each.found}. {each.remedy}".rstrip(". ")))
    console.print(here)
    console.print()
    console.print(features)
    missing = "accumulate cannot work here."
    console.print(tables.verdict(diagnosis.works, "accumulate works here.", missing))
