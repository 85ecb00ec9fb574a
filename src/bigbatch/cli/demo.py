"""`bigbatch demo`: the same network on the same batches of 512, in memory too small for them.

Plain Keras in a small budget (it dies), plain Keras with room, bigbatch in the small budget, and, for comparison,
Keras' own accumulation. What is run and compared is decided here; each run is a process of `demo_runs`, and what is
shown is left to `demo_display` and `report`. This process needs no TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bigbatch.cli import picture, report, running
from bigbatch.cli.demo_display import Display, progress_in_words, suited_to
from bigbatch.cli.demo_processes import events
from bigbatch.cli.demo_results import COLUMNS, Distance, Peak, Results, Run, Update, table
from bigbatch.core.bytes import readable
from bigbatch.core.errors import describe, require_positive

BATCH_SIZE, MICRO_BATCH_SIZE, EPOCHS = 512, 32, 4
BUDGET = 64 * 2**20
SIZES = (8, 32, 128, 512)
NEEDED = {"keras": "tensorflow-cpu", "tensorflow": "tensorflow-cpu", "sklearn": "demo"}


def build_parser() -> argparse.ArgumentParser:
    example = "  bigbatch demo --report bigbatch-demo.html --picture demo.svg"
    parser = running.build_parser("demo", "Trains in memory that is too small, and compares.", example)
    parser.add_argument("--report", type=Path, default=Path("bigbatch-demo.html"), help="the page (%(default)s)")
    parser.add_argument("--picture", type=Path, help="an SVG picture of it, too")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="how often the data is seen (%(default)s)")
    return parser


def require_packages() -> None:
    """All that the runs import, or an error before the first is started."""
    missing = [name for name in NEEDED if not find_spec(name)]
    if missing:
        extras = ",".join(sorted({NEEDED[name] for name in missing}))
        remedy = f'Install what is missing with `pip install "bigbatch[{extras}]"`.'
        expected = "`bigbatch demo` needs Keras, TensorFlow and scikit-learn."
        raise ModuleNotFoundError(describe(expected, f"no {', '.join(missing)}", remedy))


def settings(epochs: int, folder: Path, **others: Any) -> dict[str, Any]:
    """What a run is told; plain Keras on whole batches unless others are given."""
    plain = {"size": BATCH_SIZE, "micro_batch_size": None, "num_batches": None, "sizes": ()}
    return {"batch_size": BATCH_SIZE, "epochs": epochs, "folder": str(folder), **plain, **others}


def train(name: str, told: dict[str, Any], budget: int | None, display: Display) -> Run:
    """One run, shown as it goes."""
    updates: list[Update] = []
    outcome: dict[str, Any] = {}
    total = 0
    display.begin(name)
    for event in events(told, budget):
        kind = event.pop("event")
        if kind == "begin":
            total = event["num_updates"]
        elif kind == "update":
            updates.append(Update(**event))
            display.advance(name, len(updates), total, progress_in_words(event["loss"], event["peak"], budget))
        else:
            outcome = event
    run = Run(name, told["micro_batch_size"] or told["size"], budget, tuple(updates), **outcome)
    words = run.error or f"loss {run.loss:.4f}  peak {readable(run.peak or 0)}  accuracy {run.accuracy:.3f}"
    display.end(name, words, died=run.error is not None)
    return run


def measure(told: dict[str, Any], display: Display) -> tuple[Peak, ...]:
    """The peak of every micro-batch size."""
    name = "memory by micro-batch size"
    peaks: list[Peak] = []
    display.begin(name)
    for event in events(told, None):
        if event.pop("event") == "peak":
            peaks.append(Peak(**event))
            words = f"{event['micro_batch_size']} samples  peak {readable(event['peak'])}"
            display.advance(name, len(peaks), len(SIZES), words)
    display.end(name, f"{readable(peaks[0].peak)} to {readable(peaks[-1].peak)}")
    return tuple(peaks)


def distances(plain: Run, folders: Sequence[Path]) -> tuple[Distance, ...]:
    """How far the weights of bigbatch and of Keras' own accumulation are from those of plain Keras, per update."""
    reference, ours, built_in = (np.load(folder / "weights.npy").astype("float64") for folder in folders)
    size = np.linalg.norm(reference, axis=1)
    relative = [np.linalg.norm(weights - reference, axis=1) / size for weights in (ours, built_in)]
    return tuple(
        Distance(number, update.samples, float(mine), float(theirs))
        for number, (update, mine, theirs) in enumerate(zip(plain.updates, *relative), 1)
    )


def compare(epochs: int, display: Display) -> Results:
    """Runs everything, one after the other: times would not mean much otherwise."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home, display.live():
        folders = [Path(home) / name for name in ("plain", "ours", "built_in")]
        for folder in folders:
            folder.mkdir()
        whole, split = settings(epochs, folders[0]), settings(epochs, folders[1], micro_batch_size=MICRO_BATCH_SIZE)
        cut = settings(epochs, folders[2], size=MICRO_BATCH_SIZE, num_batches=BATCH_SIZE // MICRO_BATCH_SIZE)
        starved = train("plain Keras, small budget", whole, BUDGET, display)
        plain = train("plain Keras, with room", whole, None, display)
        ours = train("bigbatch, small budget", split, BUDGET, display)
        built_in = train("Keras' own accumulation", cut, BUDGET, display)
        peaks = measure(settings(1, folders[0], sizes=SIZES), display)
        compared = () if any(run.error for run in (plain, ours, built_in)) else distances(plain, folders)
    return Results(
        batch_size=BATCH_SIZE,
        micro_batch_size=MICRO_BATCH_SIZE,
        epochs=epochs,
        budget=BUDGET,
        starved=starved,
        plain=plain,
        ours=ours,
        built_in=built_in,
        peaks=peaks,
        distances=compared,
        seconds=time.monotonic() - start,
        versions=versions(),
    )


def versions() -> str:
    """What has run."""
    found = []
    for name in ("bigbatch", "keras", "tensorflow", "tensorflow-cpu", "scikit-learn"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*found, f"Python {sys.version.split()[0]}", f"{os.cpu_count()} cores"])


def show(results: Results, file: TextIO) -> None:
    """Prints the table."""
    rows = [COLUMNS, *table(results)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(file=file)
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:])]
        print("  ".join([first.ljust(widths[0]), *cells]), file=file)
    print("distance: between the weights and plain Keras' with room, |a - b| / |b|, after the last update", file=file)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; 1 if what the demo claims is not so."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        require_positive("--epochs", options.epochs, remedy=f"Leave it out for {EPOCHS}.")
        require_packages()
    except (ValueError, ModuleNotFoundError) as error:
        parser.error(str(error))
    file = sys.stderr if options.json else sys.stdout
    results = compare(options.epochs, suited_to(file))
    show(results, file)
    if results.distances:
        options.report.write_text(report.page(results), encoding="utf-8")
        print(f"\n{results.seconds:.0f} s; the report: {options.report.resolve()}", file=file)
        if options.picture:
            options.picture.write_text(picture.draw(results), encoding="utf-8")
    if options.json:
        print(json.dumps(results.to_dict(), indent=2))
    broken = results.broken_promises()
    for promise in broken:
        print(promise, file=sys.stderr)
    return 1 if broken else 0
