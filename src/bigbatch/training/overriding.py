"""Replacing behaviour on one object, never on its class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def override(target: Any, **attributes: Any) -> None:
    """Sets instance attributes past Keras' `__setattr__`, which would track and save them."""
    for name, value in attributes.items():
        object.__setattr__(target, name, value)


def restore(target: Any, *names: str) -> None:
    """Removes overrides, so that the class speaks again."""
    for name in names:
        object.__delattr__(target, name)


@contextmanager
def overridden(target: Any, **attributes: Any) -> Iterator[None]:
    """Overrides attributes of one instance for a while and puts back what was there, whatever happens."""
    before = {name: vars(target)[name] for name in attributes if name in vars(target)}
    override(target, **attributes)
    try:
        yield
    finally:
        restore(target, *(name for name in attributes if name not in before))
        override(target, **before)
