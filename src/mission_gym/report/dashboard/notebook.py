"""`mg.watch()`: the dashboard from Python, in a notebook cell or as an address."""

from __future__ import annotations

import os
import subprocess
import sys
from html import escape

from mission_gym.errors import UsageError


class Dashboard:
    """A dashboard in its own process, which ends with this one; a notebook shows it in the cell."""

    def __init__(self, process: subprocess.Popen[str], address: str, height: int) -> None:
        self._process = process
        self.address = address
        self._height = height

    def close(self) -> None:
        """End the dashboard."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __repr__(self) -> str:
        return f"Dashboard({self.address!r})"

    def _repr_html_(self) -> str:
        # The notebook's own host name, so that the browser treats the frame as the same site.
        address = escape(self.address.replace("127.0.0.1", "localhost"))
        return (
            f'<iframe src="{address}" width="100%" height="{self._height}" style="border:0"></iframe>'
            f'<p><a href="{address}" target="_blank">Open the dashboard in a tab</a></p>'
        )


def watch(runs_dir: str | os.PathLike[str] = "runs", *, port: int = 0, height: int = 700) -> Dashboard:
    """Start the dashboard of a runs folder; as the last line of a cell, it is shown there."""
    command = [sys.executable, "-m", "mission_gym", "watch", "--notebook", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--runs-dir", os.fspath(runs_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    address = process.stdout.readline().strip()
    if not address:
        raise UsageError(f"the dashboard did not start: {process.stderr.read().strip()}")
    process.stderr.close()
    return Dashboard(process, address, height)
