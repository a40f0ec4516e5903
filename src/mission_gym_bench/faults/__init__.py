"""`bench faults`: faults injected into real runs, processes and files; each states a requirement.

main: runs the faults and makes rows. harness: a folder, commands and checks for one fault. launcher: starts
commands by fork. kills, environments, files, disks, trust, clocks, fleet: the faults. hazard: an environment
that misbehaves. fake_clock: a wall clock that is set back and forward.
"""
