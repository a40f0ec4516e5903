"""What a run's own numbers say about it: alarms over its rows and evaluations."""
