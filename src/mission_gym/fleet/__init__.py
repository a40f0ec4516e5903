"""Groups of runs, packed on this machine or on the nodes of a cluster. Every run is a process with its own
command line; torch is never loaded here.

From the bottom up: `drafts` and `jobfile` (a YAML file -> drafts of runs), `mps` (sharing a GPU), `queue`
(one per user and machine), `requests` (drafts -> command lines), `groups` (opened, finished, removed),
`process` (one job's process), `usage` (measured rates and memory), `schedule` (which jobs start, as pure
functions), `supervisor` (all of these, tick by tick), `wait` (until jobs have ended).
"""
