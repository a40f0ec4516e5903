"""`mission-gym bench NAME`: comparisons with peers, and injected faults. Only the command line imports it.

main: the table of benchmarks. runner: training jobs in fresh processes, and rows. ours, sb3: the two
trainers. ppo, dqn, defaults, overlap: training. vector, waiting, images, bridge, ray: stepping and
collecting. tune, fleet, watch, overhead, gpu: the rest of the product. missions, territory_plain: simulators.
faults, soak: robustness. environments, synthetic: environments. fake_gpu, ray_nodes: simulated hardware.
"""
