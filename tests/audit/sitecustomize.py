"""Python imports this in every process below an audited command: forbidden acts become lines of a file.

MISSION_GYM_AUDIT has one JSON document: `log`, `data` (folders from which nothing may be imported),
`precious` (a folder in which nothing may be written) and `programs` (that may be started).
"""

import json
import os
import sys

_RULES = json.loads(os.environ.get("MISSION_GYM_AUDIT", "{}"))
_CODE = (".py", ".pyc", ".so", ".pth")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_busy = []


def _is_in(path, folders):
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str):
        return False
    places = (os.path.abspath(path), os.path.realpath(path))
    return any(place == root or place.startswith(root + os.sep) for place in places for root in folders)


def _find_problem(event, args):
    data, precious = _RULES["data"], [_RULES["precious"]]
    if event == "open" and isinstance(args[0], str | bytes):
        if os.fsdecode(args[0]).endswith(_CODE) and _is_in(args[0], data):
            return f"imports {args[0]!r}"
        if args[2] & _WRITES and _is_in(args[0], precious):
            return f"writes {args[0]!r}"
    if event in _CHANGES and any(_is_in(arg, precious) for arg in args[:2]):
        return f"{event} {args[:2]!r}"
    if event == "exec" and os.path.isabs(args[0].co_filename) and _is_in(args[0].co_filename, data):
        return f"executes {args[0].co_filename}"
    is_start = event in ("subprocess.Popen", "os.exec", "os.posix_spawn")
    if is_start and os.path.realpath(os.fsdecode(args[0])) not in _RULES["programs"]:
        return f"starts {args[0]!r}"
    if event == "os.system":
        return f"starts {args[0]!r}"
    if event == "socket.connect" and isinstance(args[1], tuple):
        return f"connects to {args[1]!r}"
    return None


def _hook(event, args):
    if _busy or event not in _EVENTS:
        return
    _busy.append(1)
    try:
        problem = _find_problem(event, args)
        if problem:
            with open(_RULES["log"], "a", encoding="utf-8") as file:
                file.write(f"{problem}\n")
    finally:
        _busy.clear()


_CHANGES = {"os.remove", "os.rename", "os.truncate", "os.mkdir", "os.chmod", "os.link"}
_EVENTS = _CHANGES | {
    "open", "exec", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "socket.connect",
}  # fmt: skip
if _RULES:
    sys.addaudithook(_hook)
