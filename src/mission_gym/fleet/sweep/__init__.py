"""A search for settings whose winner is tested again: a group of jobs that grows as the search proceeds.

From the bottom up: `space` (fields and their ranges), `question` (the checked request), `study` (Optuna's
journal and sampler), `trials` (a setting as jobs, their results, the candidates on fresh seeds), `search`
(all of these, tick by tick).
"""
