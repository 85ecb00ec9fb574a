"""Tables and colours for people, by rich, which is an extra. It leaves colours out where nobody would see them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from bigbatch.core.errors import describe

MISSING = describe(
    "Tables and colours need rich.",
    "no module 'rich'",
    'Install it with `pip install "bigbatch[cli]"`; here is plain text.',
)


def console() -> Any:
    """Where tables are printed, or `None` where rich is missing, which is said once."""
    try:
        from rich.console import Console
    except ModuleNotFoundError as error:
        if error.name != "rich":
            raise
        print(MISSING, file=sys.stderr)
        return None
    return Console(highlight=False, soft_wrap=False)


def table(*columns: str, right: Iterable[str] = (), **options: Any) -> Any:
    """An empty table; the columns named in `right` hold numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, **options)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def verdict(is_good: bool, good: str, bad: str) -> str:
    return f"[green]{good}[/]" if is_good else f"[red]{bad}[/]"


def plain(text: str) -> str:
    """Text that is not meant as markup, such as `bigbatch[cli]`."""
    from rich.markup import escape

    return escape(text)
