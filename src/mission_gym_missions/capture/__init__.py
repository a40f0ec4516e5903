"""The capture mission: a fleet takes a zone and holds it while scripted defenders tag its units."""
