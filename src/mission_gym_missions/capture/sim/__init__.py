"""The compiled simulator: kernels over rows of games. `rows` holds the two entries, reset and step."""
