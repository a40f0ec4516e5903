"""Contests against peers on this machine, from the command line alone: nothing imports this room."""
