"""Groups of runs, packed on this machine. Never torch: every run is a process, started by its command line.

From the bottom up: `seeds` and `arguments` (texts), `jobfile` (a YAML file -> requests), `schedule` (what may
start, a pure function), `rates` (what the machine makes of how many), `members` (one job's process), `queue`
(one of them per user and machine), `supervisor` (all of these, tick by tick), `results` (a group's estimate).
"""
