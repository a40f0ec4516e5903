"""The command line: argv in, exit code out. `main` loads only the module of the chosen command.

`train` (train, resume, branch), `eval` (eval, baselines, record, play, demo), `env` (check, tune, wrappers,
bridge, bench), `runs` (runs, config, report), `jobs`, `sweep`, `watch` and `doctor` contain the commands;
`flags` parses argv, and `groups` is shared by the commands about groups of runs.
"""
