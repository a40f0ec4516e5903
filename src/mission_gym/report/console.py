"""The one way to a terminal: plain text without one, and quiet where the reader has left."""

from __future__ import annotations

import os

from rich.console import Console

_PIPED_WIDTH = 200  # no cell is folded for a file that nobody looks at through 80 columns


class _PatientConsole(Console):
    """A console whose reader may leave: that must not end a training."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.file.fileno())  # what is still buffered must not fail at exit
        os.close(null)


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: brackets and colons in it mean nothing."""
    console = _PatientConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not console.is_jupyter and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console
