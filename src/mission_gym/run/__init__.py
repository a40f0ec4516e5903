"""Runs: a Config comes in, a finished run directory goes out; evaluate, resume and branch read it back.

`assemble` builds the compute bank from a config, `session` trains, `snapshot` saves and restores,
`recorder` writes what happened, `evaluation` plays fixed suites. Nothing here prints: events go to a
listener, as the rows of the metrics stream.
"""
