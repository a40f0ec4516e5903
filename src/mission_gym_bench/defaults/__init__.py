"""`bench defaults`: how well environments without shipped settings learn, compared with peers' defaults.

main: the rows. trials: cases, and trainings of a side on a case; peers.json has those of peers. peers: SB3
and CleanRL. Our own side is in `ours.py`, the environments in `environments.py`.
"""
