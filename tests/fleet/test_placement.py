"""Which node gets which job."""

from mission_gym.fleet.schedule import JobStart, RunningJob, WaitingJob, plan_placements
from mission_gym.ray.cluster import Node

GB = 1 << 30


def node(name: str, cpus: int, gpus: int = 0, memory_bytes: int = 64 * GB) -> Node:
    return Node(name, "host", cpus, gpus, memory_bytes, is_here=False)


def waiting(*names: str, **more: int) -> list[WaitingJob]:
    return [WaitingJob(name, "v", **more) for name in names]


def test_jobs_are_spread_over_the_nodes_and_share_each_evenly() -> None:
    decision = plan_placements(waiting("a", "b", "c"), {}, [node("x", 4), node("y", 4)], 0.0)
    assert set(decision.starts) == {JobStart("a", 2, "x"), JobStart("c", 2, "x"), JobStart("b", 4, "y")}
    assert decision.reason == ""


def test_a_running_job_keeps_its_cores() -> None:
    running = {"x": [RunningJob("r", "v", 3)]}
    decision = plan_placements(waiting("a", "b", "c"), running, [node("x", 4), node("y", 1)], 0.0)
    assert set(decision.starts) == {JobStart("a", 1, "x"), JobStart("b", 1, "y")}
    assert decision.reason == "the CPUs of the cluster are in use"


def test_a_job_waits_for_a_node_that_is_large_enough() -> None:
    nodes, running = [node("x", 8), node("y", 2)], {"x": [RunningJob("r", "v", 6)]}
    decision = plan_placements(waiting("a", cores=4), running, nodes, 0.0)
    assert decision.starts == ()
    assert plan_placements(waiting("a", cores=9), {}, nodes, 0.0).starts == (JobStart("a", 8, "x"),)


def test_a_gpu_runs_one_job() -> None:
    jobs = [WaitingJob(name, "v", uses_gpu=True) for name in "abc"]
    decision = plan_placements(jobs, {}, [node("x", 8), node("y", 8, gpus=2)], 0.0)
    assert decision.starts == (JobStart("a", 4, "y"), JobStart("b", 4, "y"))
    assert decision.reason == "the GPUs of the cluster are in use"
    assert plan_placements(jobs, {}, [node("x", 8)], 0.0).reason == "no node of the cluster lends a GPU"


def test_jobs_get_no_more_memory_than_a_node_lends() -> None:
    decision = plan_placements(waiting("a", "b", "c"), {}, [node("x", 8, memory_bytes=GB)], 0.0)
    assert [start.key for start in decision.starts] == ["a"]
    assert "GB, which are not free" in decision.reason


def test_retries_wait_and_a_cluster_may_be_empty() -> None:
    assert (
        plan_placements(waiting("a", not_before=5), {}, [node("x", 1)], 0.0).reason
        == "waiting to retry a job"
    )
    assert plan_placements(waiting("a"), {}, [], 0.0).reason == "the cluster has no nodes"
