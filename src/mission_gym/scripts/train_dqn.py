"""`python -m mission_gym.scripts.train_dqn ...` is `mission-gym train --algo dqn ...`."""

from __future__ import annotations

import sys

from mission_gym.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:], "--algo", "dqn"]))
