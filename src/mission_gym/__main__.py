"""`python -m mission_gym` is `mission-gym`."""

import sys

from mission_gym.cli.main import main

sys.exit(main())
