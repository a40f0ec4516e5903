"""The run directory on disk: the truth that evaluation, resume, branch and reports read.

In come plain values and NumPy arrays; out go files that are atomic, durable and checksummed. Nothing
here is a pickle, loads torch or starts a process. From the bottom up: `files`, `arrays` and
`lock`; `checkpoints` and `tables`; `retention` and `rundir`; `lineage` and `evals`; `resolve`.
"""
