"""Views of runs: terminal views, tables, charts and pages. Reads run directories; never writes, prints or
loads torch.

From the bottom up: `formats` (numbers as text), `charts` (SVG), `documents` (run directories -> plain
values), `tables` (plain values -> rich), `timeline` (where the time went), `scaling` (the plans of `tune`),
`terminal` (a run's events -> rich), `overview` (`watch --terminal`), `pages` (templates and panels),
`groups` and `sweeps` (several runs), `html` (the report). `screen` prints them; `dashboard` serves them.
"""
