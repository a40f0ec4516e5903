"""Stands for Ray: a cluster is reached before Ray is used, which the hooks notice."""


def shutdown():
    """Leave the cluster."""
