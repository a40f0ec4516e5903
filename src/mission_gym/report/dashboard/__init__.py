"""The live dashboard: a server of pages about a folder of runs, in a process of its own.

In: a runs folder, which is only read. Out: pages, JSON and server-sent events on one address. No torch. From
the bottom up: `stamps` and `contained` (what changed, what may be read), `rows` (a metrics stream of any
size, in part), `groups` (with their jobs), `index` (all runs, read again when their files change), `guard`
(who may ask), `follow` (what is new, as events), `app` (addresses), `serve` (the socket); `notebook` starts
it from Python.
"""
