"""Runs: a Config becomes a finished run directory; evaluate, resume and branch read it back.

config, settle:          from the user's values to a config without `auto`; open the environment, plan
environment, stages:     probed environments, their files, the stages of a curriculum
build:                   policy, learner and collector of a settled config
start, resume, branch:   begin a session
session:                 the training loop, and the parts that it uses between updates:
  recorder, alarms         events, rows, warnings
  selection, evaluation    evaluations, the best checkpoint
  saving, retention        checkpoints
  curriculum               stages
  telemetry, sampler, verdict  phases, use of the machine, the bottleneck
  status                   status.json and the progress line, repeated while a phase lasts
  signals                  stop requests
snapshot:                the state of a run, and checkpoints of it
open, baselines:         play a checkpoint; untrained policies
preview:                 `tune`, the check before a sweep, the check of devices

Nothing here prints: events go to a listener, as the rows of the metrics stream.
"""
