"""Collecting: a vector and a policy fill the columns of a Block; a fixed list of seeds is played.

`make` builds a run's vector, collector and blocks. `collector` steps a vector here; `remote` orders segments
from workers, whose side is `worker`. `blocks` handles the data; `play` plays evaluations.
"""
