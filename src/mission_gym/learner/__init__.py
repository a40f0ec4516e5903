"""Learning: a Block comes in, UpdateStats and Weights go out.

`ppo` is the algorithm in the order of its equations; `advantages` holds the equations that need no
network; `kernel` is the small interface of an update step, `torch_kernel` its reference.
"""
