"""Groups of runs, packed on this machine or on the nodes of a cluster. Never torch: every run is a process,
started by its command line.

From the bottom up: `seeds` and `arguments` (texts), `drafts`, `branches` and `jobfile` (a YAML file -> runs
that are asked for), `requests` (those as command lines), `schedule` (what may start, a pure function),
`rates` and `weights` (what running jobs teach), `mps` (how they share a GPU), `members` (one job's process),
`queue` (one per user and machine), `supervisor` (all of these, tick by tick), `drive` (who waits), `results`.

On a Ray cluster: `placement` (which job may start on which node); the rest is in the room `ray`: `nodes` (the
nodes of clusters), `job_proxy` (stands for a job here, as its process), `node_agent` (starts it on the node).
"""
