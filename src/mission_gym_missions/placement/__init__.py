"""The placement mission: put a few stations on candidate sites of a city so that they serve its demand.

env: both forms. rules: `rules.yaml` and sizes, checked. simulator and kernels: the compiled mission.
baselines: scripted planners. render: images.
"""
