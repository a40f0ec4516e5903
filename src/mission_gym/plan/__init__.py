"""Measures an environment and the machine, and plans how to run: facts and wishes in, a Choice out.

`facts` are the values; `planner` is pure; `env_costs` times an environment in children, `costs` policies and
collecting; `tuner` goes through it all, and `cache` keeps what was chosen. The run room applies the choice.
"""
