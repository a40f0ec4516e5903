"""The compiled simulator.

rows: the two entries, begin and step. layout: the arrays. motion: movement and geometry. sensors: sensing
and tags. defenders: their behaviour. objective: clocks, outcomes, reward. observation: features and mask.
"""
