"""Documentation that is stale fails here: tables, names, flags, files, links and snippets."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.cli.main import COMMANDS, main
from mission_gym.report.formats import show_value
from mission_gym.run.config import schema
from mission_gym.store.metrics import Metric, read_metrics
from runs import find_metric

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mission_gym"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WALK = "walk_of_the_docs"
FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Snippets show what a user would ask for; here they make a rollout or two.
SMALLER = ((r'timesteps="\w+"', "timesteps=2048"), (r"episodes=\d+", "episodes=2"))
# Paths of one machine, pictures, and words that say nothing.
FORBIDDEN = re.compile(
    r"(?<![\w/:.<>`*!-])/[a-z]+/[a-z]|[^\x00-\x7f]|\b(blazing|seamless|effortless|powerful|cutting-edge|simply)\b",
    re.IGNORECASE,
)


def read(page: Path) -> str:
    return page.read_text("utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path, language: str) -> list[tuple[str, str]]:
    """The code blocks of a language: the rest of the opening line, and the code."""
    return [(rest, code) for found, rest, code in FENCE.findall(read(page)) if found == language]


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the docs as a module of the current folder."""
    code = dict(fences(ROOT / "docs" / "environments.md", "python"))["my_env.py"]
    (tmp_path / f"{WALK}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_generated_blocks_are_fresh(page: Path, generate: ModuleType) -> None:
    assert read(page) == generate.render(read(page)), "run `make docs`"


def test_the_types_of_flags_are_fresh(generate: ModuleType) -> None:
    assert read(generate.FLAGS) == generate.render_flags(), "run `make docs`"


def test_every_field_is_documented() -> None:
    page = read(ROOT / "docs" / "configuration.md")
    for field in schema().fields:
        assert field.description in page, f"{field.path}: run `make docs`"


@pytest.mark.parametrize(
    ("algo", "sections"), [("ppo", ("ppo.", "policy.")), ("dqn", ("dqn.",)), ("sac", ("sac.",))]
)
def test_every_hyperparameter_has_a_reason(algo: str, sections: tuple[str, ...]) -> None:
    page = read(ROOT / "docs" / "algorithms" / f"{algo}.md")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", page, re.MULTILINE))
    fields = [field for field in schema().fields if field.path.startswith(sections)]
    assert rows == {field.name: show_value(field.default) for field in fields}


@pytest.mark.parametrize("env", ["Pendulum-v1", f"{WALK}:Walk"])
def test_every_metric_of_a_run_is_in_the_table(env: str, walk: None, tmp_path: Path) -> None:
    import mission_gym as mg

    run = mg.train(
        env, progress=False, runs_dir=str(tmp_path), n_envs=2, n_steps_per_env=32, timesteps=128,
        batch_size=32, n_epochs=1, network_arch="8", eval_freq=64, eval_episodes=1, tensorboard=False,
    )  # fmt: skip
    names = {name for row in run.metrics() for name, value in row.items() if _is_metric(name, value)}
    names |= set((run.path / "progress.csv").read_text().splitlines()[0].split(","))
    assert {"train/approx_kl", "train/std" if env == "Pendulum-v1" else "outcome/arrived"} <= names
    assert not [name for name in sorted(names) if find_metric(name, own_of("ppo")) is None]


@pytest.mark.parametrize(
    ("algo", "env", "own"),
    [("dqn", "CartPole-v1", "rollout/exploration_rate"), ("sac", "Pendulum-v1", "train/alpha")],
)
def test_every_metric_of_a_replay_is_in_the_table(algo: str, env: str, own: str, tmp_path: Path) -> None:
    import mission_gym as mg

    run = mg.train(
        env, algo=algo, progress=False, runs_dir=str(tmp_path), n_envs=2, n_steps_per_env=8,
        timesteps=64, learning_starts=32, batch_size=8, prioritized=True, network_arch="8", eval_freq=0,
        tensorboard=False,
    )  # fmt: skip
    names = {name for row in run.metrics() for name, value in row.items() if _is_metric(name, value)}
    assert {"train/q_mean", "train/beta", "train/replay_size", own} <= names
    assert not [name for name in sorted(names) if find_metric(name, own_of(algo)) is None]


def own_of(algo: str) -> tuple[Metric, ...]:
    """What an algorithm adds to the table: a missing one belongs there or in store/metrics.yaml."""
    return load_algorithm(algo).metrics


def _is_metric(name: str, value: Any) -> bool:
    return "/" in name and not isinstance(value, dict)


def test_a_metric_has_one_entry() -> None:
    assert all(find_metric(metric.name) is metric for metric in read_metrics())
    for algo in ALGORITHMS:
        assert all(find_metric(metric.name, own_of(algo)) is metric for metric in own_of(algo))
    assert find_metric("train/unheard_of") is None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown_in_use(name: str) -> None:
    assert any(re.search(rf"\bmission-gym {name}\b", read(page)) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_flags_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.partition("#")[0] for _, code in fences(page, "sh") for line in code.splitlines()]
    lines += re.findall(r"`(mission-gym [^`\n]+)`", read(page))
    for line in lines:
        if not line.startswith("mission-gym "):
            continue
        words = line.partition(" -- ")[0].split()[1:]  # behind it: flags of another command
        if words[0] in ("--help", "--version", "COMMAND"):
            continue
        assert words[0] in COMMANDS, line
        capsys.readouterr()
        listing = "--help-all" if words[0] == "train" else "--help"
        assert main([*words[: 2 if words[0] in ("runs", "jobs") else 1], listing]) == 0
        known = {"--help-all"} | set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known, f"{line}: unknown {given - known}"


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")], ids=name_of)
def test_python_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with a file name is that file; the others run in order, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for file_name, code in fences(page, "python"):
        if file_name:
            (tmp_path / file_name).write_text(code)
            continue
        for pattern, small in SMALLER:
            code = re.sub(pattern, small, code)
        exec(compile(code, f"{page.name}, python block", "exec"), {"__name__": "snippet"})


def test_the_environment_of_the_docs_is_a_good_one(walk: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{WALK}:Walk"]) == 0
    assert "warning" not in capsys.readouterr().out
    flags = ["--timesteps", "1024", "--eval-freq", "0", "--no-tensorboard"]
    assert main(["train", f"{WALK}:Walk", *flags]) == 0
    assert main(["resume", "latest", "--timesteps", "2048"]) == 0
    said = capsys.readouterr().err
    assert "8 of 8 environments restored by state" in said
    assert "the resume is exact" in said


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path
        assert linked.is_file(), f"{page.name}: {target}"
        heads = re.findall(r"^#+ (.*)$", read(linked), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [head.lower().replace(" ", "-") for head in heads], target
    for path in re.findall(r"`((?:[\w.]+/)*[\w]+\.py)`", read(page)):
        assert any((base / path).is_file() for base in (SOURCE, SOURCE.parent, ROOT)), f"{page.name}: {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_words_and_lengths(page: Path) -> None:
    for number, line in enumerate(read(page).splitlines(), 1):
        found = FORBIDDEN.search(line)
        assert found is None, f"{page.name}, line {number}: {found and found[0]!r}"
    assert page.name != "README.md" or len(read(page).splitlines()) < 150
