"""`doctor` and `tune` on a Ray cluster of two nodes: its nodes, versions and the cost of messages."""

import json

import pytest

pytest.importorskip("ray")

from mission_gym.cli.main import main
from mission_gym_bench.ray_nodes import ray_nodes
from timeouts import scale_timeout


def test_doctor_and_tune_describe_a_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ray_nodes(1, 1) as nodes:
        at = ["--ray-address", nodes.address]
        assert main(["doctor", *at, "--json", "--deadline", str(scale_timeout(60))]) == 0
        findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
        assert nodes.address in findings["cluster"]["what"]
        assert "messages" in findings
        asked = ["tune", "CartPole-v1", "--n-envs", "4", "--budget", f"{scale_timeout(3):.0f}s"]
        assert main([*asked, *at, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert document["backend"] == "ray"
    cluster = document["cluster"]
    assert [node["num_cpus"] for node in cluster["nodes"]] == [1, 1]
    assert 0 < cluster["costs"]["call_s"] < cluster["costs"]["latency_s"] + 1
