"""Clusters of Ray: refused with one message, started with a token, and gone with whoever started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mission_gym.errors import UsageError
from mission_gym.ray import cluster as clusters
from mission_gym.ray.backend import BACKEND, connect
from mission_gym.ray.cluster import check_versions, load_ray, node_versions, open_cluster, plan_upload
from mission_gym.run.config import resolve
from mission_gym_bench.ray_nodes import ray_nodes
from timeouts import is_alive, wait_until

_OPEN = """
import json, os, psutil
from mission_gym.ray.cluster import open_cluster
cluster = open_cluster(num_cpus=2)
own = psutil.Process().children(recursive=True)
session = cluster.ray._private.worker._global_node.get_session_dir_path()
told = {"pids": [each.pid for each in own], "folder": os.path.dirname(session), "address": cluster.address}
told["nodes"] = [node._asdict() for node in cluster.nodes()]
print(json.dumps(told), flush=True)
"""
_STRANGER = """
import os, sys, ray
for name in [name for name in os.environ if name.startswith("RAY_")]: del os.environ[name]
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except ConnectionError:
    print("refused")
"""

TAKEN = {"env.py": 10, "parts/inner.py": 20, "maps/environment.yaml": 30, "key_door.py": 40}  # bytes
LEFT = [
    ".env", ".env.local", "deploy.PEM", "parts/server.key", ".ssh/known", ".aws/config", "id_rsa",
    ".netrc", "secrets.yaml", "runs/mine/config.yaml", "old/status.json", ".git/HEAD", "wandb/x",
    "a[1] b/.env",
]  # fmt: skip


def test_ray_that_is_missing_is_one_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"Ray is not installed.*pip install 'mission-gym\[ray\]'"):
        load_ray()


@pytest.fixture
def project(tmp_path):
    """A folder with four files that a cluster may get, and with others that it may not."""
    folder, outside = tmp_path / "project", tmp_path / "outside"
    outside.mkdir()
    (outside / "id").write_text("secret")
    for name in [*TAKEN, *LEFT]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x" * TAKEN.get(name, 1000))
    (folder / "away").symlink_to(outside)
    (folder / "away.txt").symlink_to(outside / "id")
    return folder


def test_an_upload_leaves_out_runs_secrets_and_links(project):
    upload = plan_upload(project)
    assert (upload.num_files, upload.size_bytes) == (4, 100)
    assert upload.left_out == sorted(
        [
            ".aws", ".env", ".env.local", ".git", ".netrc", ".ssh", "a[1] b/.env", "away", "away.txt",
            "deploy.PEM", "id_rsa", "old", "parts/server.key", "runs", "secrets.yaml", "wandb",
        ]
    )  # fmt: skip
    assert "/a\\[1\\]\\ b/.env" in upload.exclude()
    text = f"up to 4 files (0.0 MB) of {project} are uploaded to the cluster, without .aws, .env"
    assert upload.describe() == f"{text}, .env.local and 13 more"


def test_a_node_gets_the_planned_files_only(project):
    """A task lists its working folder."""
    pytest.importorskip("ray")

    def look():
        paths = [os.path.join(parent, name) for parent, _, names in os.walk(".") for name in names]
        return {os.path.relpath(path): os.path.getsize(path) for path in paths}

    with ray_nodes(1) as nodes:
        cluster = open_cluster(nodes.address, folder=str(project))
        assert cluster.ray.get(cluster.ray.remote(look).remote()) == TAKEN
        upload = cluster.upload
    assert (upload.num_files, upload.size_bytes) == (len(TAKEN), sum(TAKEN.values()))


def test_the_folder_of_the_environment_is_uploaded_without_secrets(tmp_path, monkeypatch):
    """A stand-in for Ray records what it would get."""
    given = {}

    def init(**options):
        given.update(options)
        return SimpleNamespace(address_info={"gcs_address": options["address"]})

    monkeypatch.setattr(clusters, "load_ray", lambda: SimpleNamespace(init=init, shutdown=lambda: None))
    monkeypatch.setattr(clusters, "_try_reach", lambda address: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_uploaded_env.py").write_text("")
    (tmp_path / ".env").write_text("KEY=1")
    flags = {"vector": "ray", "ray_address": "127.0.0.1:9"}
    cluster = connect(resolve("my_uploaded_env:Env", flags).config, BACKEND)
    try:
        assert cluster.upload.num_files == 1
    finally:
        cluster.close()
    assert given["runtime_env"]["working_dir"] == str(tmp_path)
    assert given["runtime_env"]["excludes"] == ["/.env"]


def test_a_node_of_other_versions_is_one_message():
    check_versions(node_versions(), "far")
    with pytest.raises(UsageError, match=r"the node far has numpy 1\.0 \(here .*install the same versions"):
        check_versions(node_versions() | {"numpy": "1.0"}, "far")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", r"no Ray cluster answers at 127\.0\.0\.1:9 \(Connection refused\).*ray start --head"),
        ("nowhere", r"'nowhere' is not the address of a cluster; write auto or HOST:PORT"),
        ("ray://head:10001", r"an address of a Ray client.*run this on a node"),
    ],
)
def test_an_address_without_a_cluster_is_one_message(address, message):
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=message):
        open_cluster(address)
    assert clusters.find_cluster() is None


def test_what_was_started_has_a_token_and_ends_with_us():
    pytest.importorskip("ray")
    script = f"{_OPEN}\nimport time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert [node["num_cpus"] for node in told["nodes"]] == [2]
        assert told["nodes"][0]["is_here"]
        tried = subprocess.run(
            [sys.executable, "-c", _STRANGER, told["address"]], capture_output=True, text=True, check=True
        )
        assert tried.stdout == "refused\n"
        assert len(told["pids"]) > 3
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, told["pids"])))
    wait_until(lambda: not os.path.exists(told["folder"]))


def test_a_cluster_is_shared_and_left_in_the_end():
    pytest.importorskip("ray")
    script = (
        f"{_OPEN}\nassert open_cluster() is cluster\ncluster.close()\n"
        "assert cluster.is_closed and 'RAY_AUTH_TOKEN' not in os.environ\n"
        "assert not any(map(psutil.pid_exists, told['pids'])) and not os.path.exists(told['folder'])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
