"""Measures an environment and this machine, and chooses how to run.

facts:     the planner's inputs and its result, as plain values
env_costs: times an environment in child processes
costs:     times acting, collecting and the whole loop
setups:    device, kernel and precision of the learner; overlap
memory:    predicts the memory of a run
planner:   chooses a layout; pure
tuner:     goes through all of it within a time budget
measured:  the replay ratio, from the costs in the chosen layout
cache:     plans of earlier runs on this machine
summary:   the plan as it is printed
"""
