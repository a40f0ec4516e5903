"""Config: flags, files, presets and shipped settings become one frozen Config, each value with its source.

types, calls, sizes: the text forms of values
plain_yaml:          YAML files without code, with the line of each key
curriculum:          the stages of a training
schema, fields:      every field; the complete schema with the tables of algorithms, backends and trackers
layers:              which source wins
rules:               rules between fields
"""
