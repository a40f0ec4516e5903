"""The live dashboard: a server of pages about a folder of runs, in its own process.

It only reads the runs folder, and serves pages, JSON and server-sent events. No torch. From the bottom up:
`files` (which files may be read, and whether they changed), `rows` (a metrics stream of any size, in part),
`index` (all runs and groups, read again when their files change), `guard` (which requests are allowed),
`follow` (changes as events), `app` (the routes), `serve` (the socket); `notebook` starts it from Python.
"""
