"""The one way to a terminal: `streams` (text that can't harm, readers that may leave) and `live` (a run as it
happens)."""
