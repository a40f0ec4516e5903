"""The explore mission: find one page of a web site over real HTTP, in few requests."""
