"""`python -m mission_gym.scripts.train_sac ...` is `mission-gym train --algo sac ...`."""

from __future__ import annotations

import sys

from mission_gym.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:], "--algo", "sac"]))
