"""Config: flags, files, presets and shipped settings become one frozen Config with sources.

sizes (arithmetic and texts of numbers) and plain (YAML) < schema (the fields) < layers (the order of
strength) < rules (what one field asks of another). Reads files, writes none.
"""
