"""The capture mission: a fleet takes a zone and holds it while scripted defenders tag its units.

env: both forms. scenario: levels from YAML. simulator and sim: the compiled game. baselines: scripted
policies. keyboard: play by hand. render: images and the window.
"""
