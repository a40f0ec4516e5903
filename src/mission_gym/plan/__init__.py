"""Measures an environment and the machine, and plans how to run: facts and wishes in, a Choice out.

`facts` are the values; `planner` and `memory` are pure; `timing` times an environment in children; `cache`
keeps what was chosen. The run room times policies and updates, and applies the choice.
"""
