"""What is seen while the demo runs: bars where a terminal and `rich` are there, and lines where not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Protocol, TextIO

from bigbatch.core.bytes import readable


class Display(Protocol):
    """Hears of every run: that it begins, how far it is and how it ended."""

    def live(self) -> AbstractContextManager[Any]: ...

    def begin(self, name: str) -> None: ...

    def advance(self, name: str, done: int, total: int, words: str) -> None: ...

    def end(self, name: str, words: str, *, died: bool = False) -> None: ...


class Lines:
    """A line when a run begins, one per four updates, and one when it ends."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def live(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def begin(self, name: str) -> None:
        self._print(f"{name} ...")

    def advance(self, name: str, done: int, total: int, words: str) -> None:
        if done % 4 == 0:
            self._print(f"  {done}/{total}  {words}")

    def end(self, name: str, words: str, *, died: bool = False) -> None:
        self._print(f"  {'DIED: ' if died else ''}{words}")

    def _print(self, line: str) -> None:
        print(line, file=self._file, flush=True)


class Bars:
    """A bar per run."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._progress = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            console=Console(file=file),
        )
        self._tasks: dict[str, Any] = {}

    def live(self) -> AbstractContextManager[Any]:
        return self._progress

    def begin(self, name: str) -> None:
        self._tasks[name] = self._progress.add_task(name, total=None, words="starting ...")

    def advance(self, name: str, done: int, total: int, words: str) -> None:
        self._progress.update(self._tasks[name], completed=done, total=total, words=words)

    def end(self, name: str, words: str, *, died: bool = False) -> None:
        from rich.markup import escape

        task = self._tasks[name]
        if died:
            self._progress.update(task, description=f"[bold red]{name}", words="[bold red]died")
            self._progress.console.print(f"[bold red]{name}:[/] {escape(words)}")
            self._progress.stop_task(task)
        else:
            self._progress.update(task, words=words)


def suited_to(file: TextIO) -> Display:
    """Bars for people, lines for files, pipes and where `rich` is not installed."""
    return Bars(file) if file.isatty() and find_spec("rich") else Lines(file)


def progress_in_words(loss: float, peak: int, budget: int | None) -> str:
    """How a run is doing."""
    of_budget = f" of {readable(budget)}" if budget else ""
    return f"loss {loss:.4f}  peak {readable(peak)}{of_budget}"
