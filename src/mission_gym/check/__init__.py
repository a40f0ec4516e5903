"""Checks of an environment (`mission-gym check`) and of the machine (`mission-gym doctor`), as findings.

`environment` checks an environment in a child process: `traces` plays and records it, `survey` judges the
recorded statistics, `comparison` its seeds, actions and vectors, `bridge` the protocol of a game. `machine`
checks the machine with `packages` and `devices`. `findings` (and findings.toml) has the texts. `repro`
replays a failure.
"""
