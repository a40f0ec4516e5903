"""`python -m mission_gym.scripts.evaluate --model RUN ...` is `mission-gym eval RUN ...`."""

from __future__ import annotations

import sys

from mission_gym.cli.main import main


def _without_model(args: list[str]) -> list[str]:
    """`--model RUN` and `--model=RUN` as the plain RUN."""
    split = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--model=") else [arg])]
    return [arg for arg in split if arg != "--model"]


if __name__ == "__main__":
    sys.exit(main(["eval", *_without_model(sys.argv[1:])]))
