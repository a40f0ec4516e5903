"""The exam of an environment in a process of its own, so that one that crashes or hangs is a finding too."""

from __future__ import annotations

import pickle

from mission_gym.check.environment import check_environment
from mission_gym.check.findings import Finding, tell
from mission_gym.env.factory import EnvRequest, names_trusted
from mission_gym.errors import MissionGymError, WorkerDied
from mission_gym.procs import BoundedLog, Child, Link, dump_object

SILENT_S = 300.0  # of one part: a first reset may take as long, the others have seconds and end between steps
_FIRST = "it was started"


def check_apart(request: EnvRequest) -> list[Finding]:
    """The findings of `check_environment`; a trusted environment is examined here, which is sooner begun."""
    if names_trusted(request):
        return check_environment(request)
    child = Child("mission_gym.check.apart:serve_exam", dump_object(request), on_output=BoundedLog(None))
    try:
        answer = _hear(child)
    finally:
        child.end()
    if isinstance(answer, MissionGymError):
        raise answer
    return answer


def _hear(child: Child) -> list[Finding] | MissionGymError:
    """What the child found, what it was refused, or how it ended."""
    part = _FIRST
    try:
        while replies := child.wait(SILENT_S):
            for kind, content in replies:
                if kind == "answer":
                    answer: list[Finding] | MissionGymError = content
                    return answer
                part = content
        return [tell("process", "hung", part=part, seconds=SILENT_S, stack=child.read_stack().strip())]
    except WorkerDied:
        return [tell("process", "died", part=part, how=child.describe_end(), words=child.tail().strip())]


def serve_exam(link: Link, setup: bytes) -> None:
    """The exam in the child: every part is announced before it begins."""
    try:
        findings = check_environment(pickle.loads(setup), say=lambda part: link.send(("part", part)))
    except MissionGymError as error:  # what the environment needs is not here
        link.send(("answer", error))
    else:
        link.send(("answer", findings))
