"""Collecting: a vector and a policy fill a Block; a fixed list of seeds is played for an evaluation."""
