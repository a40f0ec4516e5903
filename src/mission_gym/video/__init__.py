"""Environments that render: `record` (a policy's episodes as videos or pages) and `play` (the keyboard)."""
