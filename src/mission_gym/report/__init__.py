"""Views of runs: what a terminal shows, tables over run directories, pages and pictures. Reads disk, never
writes or prints, no torch.

From the bottom up: `formats`; `documents` (run directories to plain values); `tables` and
`summary` (plain values to what rich prints); `terminal` (a run's events to the same).
"""
