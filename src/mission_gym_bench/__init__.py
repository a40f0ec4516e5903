"""Contests against peers, and injected faults, from the command line alone: nothing imports this room."""
