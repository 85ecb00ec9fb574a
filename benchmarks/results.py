"""What `compare.py` and `truth.py` have in common: their arguments, and the file that keeps what they find."""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path


def parser_of(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="whether it runs")
    parser.add_argument("--rival", type=_path, help="a Python that has gradient-accumulator and TensorFlow 2.15")
    parser.add_argument("--output", type=Path, help="a JSON file")
    return parser


def groups_of(ours, rivals, rival):
    """Which contenders run in which Python."""
    return [(sys.executable, ours)] + ([(rival, rivals)] if rival else [])


def facts(rival):
    import keras
    import tensorflow as tf

    import bigbatch

    versions = {"bigbatch": bigbatch.__version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    return {**versions, **machine, "rival": bool(rival), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0]}


def save(result, path):
    if path:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1))


def _path(python):
    """None, if it is empty."""
    return os.path.abspath(python) if python else None
