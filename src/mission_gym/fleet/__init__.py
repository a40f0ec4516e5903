"""Groups of runs, packed on this machine or on the nodes of a cluster. Every run is a process with its own
command line; torch is never loaded here.

From the bottom up: `mps` (sharing a GPU), `queue` (one per user and machine), `requests` (drafts of runs ->
command lines), `jobfile` (a YAML file -> drafts), `groups` (opened, finished, removed), `process` (one job's
process), `schedule` (measured rates and memory; which jobs start), `supervisor` (all of these, tick by tick),
`wait` (until jobs have ended).
"""
