"""Environment variables by which who starts a run talks to its process. Loads nothing."""

RUN_FILE = "MISSION_GYM_RUN_FILE"  # where the run tells where it lies
GROUP = "MISSION_GYM_GROUP"  # the name of its group
PID = "MISSION_GYM_PID"  # of the process that stands for a run on the starter's machine
END_FILE = "MISSION_GYM_END_FILE"  # where the process tells its exit code
