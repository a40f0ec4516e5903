"""`python -m mission_gym.scripts.NAME`: the commands under the names of other trainers."""
