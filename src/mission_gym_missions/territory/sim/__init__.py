"""The compiled rules of the territory mission."""
