"""What `compare.py`, `truth.py` and `auto.py` have in common: arguments, and the file that keeps what they find."""

import argparse
import json
import os
import platform
import re
import sys
import time
from pathlib import Path


def parser_of(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file")
    return parser


def parser_of_contest(description):
    """With a quick run, and the rival."""
    parser = parser_of(description)
    parser.add_argument("--quick", action="store_true", help="whether it runs")
    parser.add_argument("--rival", type=_path, help="a Python that has gradient-accumulator and TensorFlow 2.15")
    return parser


def groups_of(ours, rivals, rival):
    """Which contenders run in which Python."""
    if not rival:
        print("without gradient-accumulator, for lack of --rival", flush=True)
    return [(sys.executable, ours)] + ([(rival, rivals)] if rival else [])


def facts():
    import keras
    import tensorflow as tf

    import bigbatch

    versions = {"bigbatch": bigbatch.__version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    machine = {"python": platform.python_version(), "machine": _processor(), "cores": os.cpu_count()}
    return {**versions, **machine, "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0]}


def _processor():
    """As Linux calls it; what it is allowed to do decides which kernels TensorFlow has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    [name, *_] = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    widest = [each for each in ("avx512f", "avx2", "avx") if any(each in line.split() for line in lines)]
    return ", ".join([name, *widest[:1]])


def save(result, path):
    """Numbers with five digits, and one line for every list of them."""
    if path:
        path.parent.mkdir(exist_ok=True)
        short = json.loads(json.dumps(result), parse_float=lambda digits: float(f"{float(digits):.5g}"))
        in_lines = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), json.dumps(short, indent=1))
        path.write_text(in_lines + "\n")


def _path(python):
    """None, if it is empty."""
    return os.path.abspath(python) if python else None
