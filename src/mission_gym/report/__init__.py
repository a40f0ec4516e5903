"""Views of runs: the live terminal, and tables over run directories. Reads disk, never writes, no torch.

From the bottom up: `formats` and `console`; `documents` (run directories to plain values); `tables` and
`summary` (plain values to what rich prints); `terminal` (a run's events to one live line).
"""
