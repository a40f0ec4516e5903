"""The only way to the terminal: `streams` (safe text, closed readers) and `live` (documents, runs and
jobs)."""
