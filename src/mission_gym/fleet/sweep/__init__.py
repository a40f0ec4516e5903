"""A search for settings whose winner is tested again: a group of the fleet that asks for its jobs as it goes.

From the bottom up: `space` (which fields, over which ranges), `question` (what is asked, refused as a whole
if something is wrong), `study` (the one module that loads Optuna), `trials` (a setting as jobs, and what they
came to), `winner` (trained again on fresh seeds), `search` (all of these, tick by tick).
"""
