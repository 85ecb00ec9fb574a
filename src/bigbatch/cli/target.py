"""`path/to/file.py:function` or `package.module:function`: where the command line gets a model and data from.

What is wrong with the words or with what comes back is a `TargetError`, to be shown as it is. What the user's own code
raises goes its own way, with its traceback; only ending the program is not its to decide.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from bigbatch.core.errors import describe

HELP = (
    "path/to/file.py:function or package.module:function; it is called without arguments "
    "and returns (model, x, y) or (model, dataset), with a compiled model and a batched dataset"
)


class TargetError(Exception):
    """There is no model to be had from what was asked for."""


class Target(NamedTuple):
    """What the function returned; `y` is `None` where `x` is a dataset."""

    model: Any
    x: Any
    y: Any


def load(text: str) -> Target:
    """Imports the module, calls the function and looks at what it returns."""
    place, colon, name = text.rpartition(":")
    if not (colon and place and name):
        remedy = "Use path/to/file.py:function or package.module:function."
        raise TargetError(describe("A target must name a place and a function.", f"target={text!r}", remedy))
    with _as_program(place), _in_package(Path(place).resolve(), name):
        module = _file(Path(place).resolve()) if place.endswith(".py") else _module(place)
        return _checked(text, _function(module, place, name)())


@contextmanager
def no_exit() -> Iterator[None]:
    """Refuses `sys.exit`: its code would pass for ours, and 0 for a promise that nobody has tested."""
    try:
        yield
    except SystemExit as error:
        remedy = "Leave `sys.exit` to `if __name__ == '__main__':`, and return the model."
        expected = "The code of a target must not end the program."
        raise TargetError(describe(expected, f"SystemExit({error.code!r})", remedy)) from error


@contextmanager
def _as_program(place: str) -> Iterator[None]:
    # A module that parses its command line would take ours for its own.
    before, sys.argv = sys.argv, [place]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _in_package(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        is_its_own = traceback.extract_tb(error.__traceback__)[-1].filename == str(path)
        if not is_its_own or "no known parent package" not in str(error):
            raise
        folder = Path.cwd() if Path.cwd() in path.parent.parents else path.parent.parent
        dotted = ".".join(path.relative_to(folder).with_suffix("").parts)
        remedy = f"Use {dotted}:{name} in {folder}."
        raise TargetError(describe("A file must not have relative imports.", f"file={str(path)!r}", remedy)) from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        remedy = f"Check the path, which is relative to {Path.cwd()}."
        raise TargetError(describe("The file must exist.", f"file={str(path)!r}", remedy))
    if path.stem in sys.modules:
        remedy = "Rename the file."
        raise TargetError(describe("The file must not have the name of another module.", f"{path.name!r}", remedy))
    # As `python file.py` does; and so another process, where `plan` measures, finds its classes.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        remedy = "Check the name, or give the path of a file that ends in .py."
        raise TargetError(describe("The module must exist.", f"module={name!r}", remedy)) from error


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if not callable(function):
        own = [(each, value) for each, value in vars(module).items() if callable(value)]
        found = [each for each, value in own if getattr(value, "__module__", None) == module.__name__]
        remedy = f"There are: {', '.join(found)}." if found else f"Write a function in {place}."
        raise TargetError(describe("The function must exist.", f"{name!r} of {place}", remedy))
    missing = _needed(function)
    if missing:
        remedy = "Give them defaults, or write a function that calls it."
        raise TargetError(describe(f"{name!r} of {place} must need no arguments.", ", ".join(missing), remedy))
    return function


def _needed(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some of what is written in C does not tell
        return []
    optional = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def _checked(text: str, returned: Any) -> Target:
    import keras

    is_pair = isinstance(returned, (tuple, list)) and len(returned) in (2, 3)
    if not is_pair or not isinstance(returned[0], keras.Model):
        kinds = ", ".join(type(each).__name__ for each in returned) if is_pair else type(returned).__name__
        remedy = "Return a Keras 3 model and what it is fitted to."
        raise TargetError(describe(f"{text} must return (model, x, y) or (model, dataset).", kinds, remedy))
    if not returned[0].compiled:
        remedy = "Call `model.compile` before you return it."
        raise TargetError(describe(f"{text} must return a compiled model.", "compiled=False", remedy))
    return Target(*returned, *[None] * (3 - len(returned)))
