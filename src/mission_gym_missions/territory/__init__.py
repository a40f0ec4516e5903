"""The territory mission: grow on a map against scripted nations.

env: both forms, and replays. rules: `rules.yaml`, checked. simulator and sim: the compiled game. baselines:
scripted policies. render: images. game.cjs, engine.cjs: the rules in JavaScript; viewer.html plays replays.
"""
