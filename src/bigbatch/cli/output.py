"""What a worker prints, line by line behind its name. Bytes stay bytes: what is not decoded cannot fail to be."""

from __future__ import annotations

import re
from os import set_blocking
from typing import IO

CHUNK_BYTES = 2**16
# A progress bar that goes back to redraw itself has ended a line, too.
_LINE_END = re.compile(rb"(\n|[\r\b]+\n?)")


class Lines:
    r"""Lines out of bytes that come in pieces, however they are cut.

    >>> lines = Lines()
    >>> lines.add(b"one\ntw"), lines.add(b"o\r"), lines.add(b"\nthree"), lines.end()
    ([b'one'], [b'two'], [], [b'three'])
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes. Where a bar only goes back, there is no empty line."""
        text = self._rest + piece
        *parts, rest = _LINE_END.split(text)
        # A carriage return at the end is kept, for the "\n" that may follow belongs to it.
        self._rest = rest or text[-1:].strip(b"\n")
        return [line for line, end in zip(parts[::2], parts[1::2]) if line or end == b"\n"]

    def end(self) -> list[bytes]:
        """The last line, if it has no end of its own."""
        return self.add(b"\n") if self._rest else []


class Output:
    """One stream of one worker: bytes come out of `pipe`, lines go to `sink` at once, each behind `prefix`."""

    def __init__(self, pipe: IO[bytes], sink: IO[bytes], prefix: bytes) -> None:
        self._pipe, self._sink, self._prefix = pipe, sink, prefix
        self._lines = Lines()
        set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        return self._pipe.fileno()

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    def forward(self) -> bool:
        """Prints the lines that the next bytes complete; returns whether there were bytes."""
        chunk = None if self.closed else self._pipe.read(CHUNK_BYTES)
        if chunk:
            self._print(self._lines.add(chunk))
        elif chunk == b"":
            self.close()
        return bool(chunk)

    def drain(self) -> None:
        """Prints all that is there, and does not wait for more: somebody else may hold the pipe open."""
        while self.forward():
            pass
        self._print(self._lines.end())

    def close(self) -> None:
        self._pipe.close()

    def _print(self, lines: list[bytes]) -> None:
        self._sink.write(b"".join(self._prefix + line + b"\n" for line in lines))
        self._sink.flush()
