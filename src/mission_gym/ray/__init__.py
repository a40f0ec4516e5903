"""Environments and jobs on the nodes of a Ray cluster; needs the extra `ray`."""
