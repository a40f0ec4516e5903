"""The placement mission: put a few stations on candidate sites of a city, so that they serve its demand."""
