"""The compiled simulator.

rows: the two entries, begin and step. layout: the arrays. land: terrain and starting positions. war: fronts,
bots, attacks, growth, outcomes. observation: the pooled map, numbers and mask.
"""
