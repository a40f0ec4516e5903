"""A game's side that does one thing wrong: `python faulty_game.py FAULT`. It answers by hand."""

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from mission_gym.bridge.clients.mission_gym_bridge import box, discrete, pack, unpack

fault = sys.argv[1]


def send(answer):
    data = answer if isinstance(answer, bytes) else pack(answer)
    sys.stdout.buffer.write(struct.pack("<I", len(data)) + data)
    sys.stdout.flush()


def read():
    head = sys.stdin.buffer.read(4)
    if not head:
        sys.exit(0)
    return unpack(sys.stdin.buffer.read(struct.unpack("<I", head)[0]))


def answer_step(message):
    count = len(message["games"])
    answer = {"obs": [struct.pack("<2f", 0.0, 0.5) * count]}
    if message["type"] == "step":
        answer.update(reward=struct.pack("<d", 1.0) * count, terminated=bytes(count), truncated=bytes(count))
    return answer


if fault == "grandchild":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if fault == "stderr":
    block = b"x" * (1 << 16)
    for _ in range(1 << 14):  # 1 GiB
        os.write(2, block)
while True:
    message = read()
    kind = message["type"]
    if kind == "hello":
        if fault == "prints":
            os.write(1, b"Hello, world! The game is starting.\n")
        if fault == "nil":
            send(bytes(1 << 25))
        size = int(Path(sys.argv[2]).read_text()) if fault == "spaces" else 2
        hello = {"version": 1, "observation_space": box((size,)), "action_space": discrete(2), "max_games": 4}
        if fault == "version":
            hello["version"] = 7
        if fault == "space":
            hello["action_space"] = {"type": "discret", "n": 2}
        if fault == "misspelt":
            hello["max_game"] = 3
        send(hello)
    elif kind not in ("reset", "step"):
        if fault == "deaf":
            sys.exit(4)
        send({"error": "not known"})
    elif kind == "reset" or fault in ("none", "grandchild", "stderr", "misspelt", "deaf", "spaces"):
        send(answer_step(message))
    elif fault == "hangs":
        time.sleep(600)
    elif fault == "dies":
        os.write(2, b"out of luck\n")
        os.kill(os.getpid(), 11)
    elif fault == "garbage":
        send(b"\xc1\xff\x00")
    elif fault == "half":
        os.write(1, struct.pack("<I", 100) + b"half of it")
        sys.exit(3)
    elif fault == "list":
        send([1, 2])
    elif fault == "short":
        send(answer_step(message) | {"obs": [b"\0\0\0\0"]})
    elif fault == "flags":
        send(answer_step(message) | {"terminated": bytes([3] * len(message["games"]))})
    elif fault == "outside":
        send(answer_step(message) | {"obs": [struct.pack("<2f", 0.0, float("nan")) * len(message["games"])]})
    elif fault == "more":
        send(answer_step(message))
        send(answer_step(message))
    elif fault == "large":
        send(bytes((1 << 24) + 9))
    elif fault == "error":
        send({"error": "the engine is tired"})
