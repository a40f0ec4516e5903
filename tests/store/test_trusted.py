"""Code that a run or a config file names is judged by where it lies and by what it is, before it runs."""

import sys

import pytest

from mission_gym.errors import TrustError, UsageError
from mission_gym.names import locate
from mission_gym.store import trusted
from mission_gym.store.trusted import allow, find_data_folders, permit, retry_if_allowed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module of the user's, and a state folder of its own."""
    here = tmp_path / "project"
    here.mkdir()
    (here / "own_envs_of_trust.py").write_text("raise RuntimeError('imported')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(trusted, "_here", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return here


def test_registered_ids_and_the_current_folder_need_no_leave(folder):
    assert permit(["CartPole-v1", "own_envs_of_trust:Env", "nowhere_at_all:Env"]) == ()


def test_a_name_that_was_typed_may_be_called_from_then_on(folder, monkeypatch):
    name = "own_envs_of_trust:make"
    assert permit([name], typed=[name]) == (name,)
    monkeypatch.setattr(trusted, "_here", set())  # as in another process
    assert permit([name]) == (name,)
    assert trusted.find_trust_file().read_text() == f"{name} in {folder}\n"


def test_a_name_that_was_typed_in_another_folder_is_another(folder, tmp_path, monkeypatch):
    name = "own_envs_of_trust:make"
    permit([name], typed=[name])
    other = tmp_path / "other"
    other.mkdir()
    (other / "own_envs_of_trust.py").write_text("")
    monkeypatch.chdir(other)
    assert permit([name]) == ()


@pytest.mark.parametrize(
    "name", ["subprocess:getoutput", "os:system", "builtins:exec", "posix:system", "json.tool:main"]
)
def test_the_standard_library_is_never_run(folder, name):
    with pytest.raises(UsageError, match="never run"):
        permit([name], typed=[name])


def test_a_module_of_the_current_folder_may_have_a_name_of_the_standard_library(folder):
    (folder / "this.py").write_text("")
    sys.modules.pop("this", None)
    assert permit(["this:Env"], typed=["this:Env"]) == ("this:Env",)


def test_programs_are_never_run(folder):
    with pytest.raises(UsageError, match="never run"):
        permit(["pip.__main__:main"])


def make_run(path):
    path.mkdir()
    for name in ("config.yaml", "status.json", "lineage.json"):
        (path / name).write_text("")
    return path


def test_code_inside_a_run_is_never_run(folder, tmp_path, monkeypatch):
    run = make_run(tmp_path / "stranger")
    (run / "env").mkdir()
    (run / "env" / "inside_a_run.py").write_text("")
    name = "inside_a_run:Env"
    for allowed in (False, True):
        if allowed:
            allow(f"{name} in {run / 'env'}")
        with pytest.raises(UsageError, match="code inside a run"):
            permit([name], runs=[run], folder=str(run / "env"))
    monkeypatch.chdir(run / "env")
    with pytest.raises(UsageError, match="code inside a run"):
        permit([name])
    monkeypatch.chdir(folder)
    (folder / "inside_a_run.py").symlink_to(run / "env" / "inside_a_run.py")
    with pytest.raises(UsageError, match="code inside a run"):
        permit([name])


@pytest.mark.parametrize("stamped", ["gift", "gift-20261116-000000"])
def test_a_dotted_name_into_a_run_is_never_run(folder, stamped):
    """`kept` and its folders are namespace packages: `import kept.gift.env.evil` works."""
    (folder / "kept").mkdir()
    run = make_run(folder / "kept" / stamped)
    (run / "env").mkdir()
    (run / "env" / "evil.py").write_text("")
    name = f"kept.{stamped}.env.evil:Env"
    with pytest.raises(UsageError, match="code inside a run"):
        permit([name], typed=[name])
    (run / "lineage.json").unlink()  # one of its files is enough
    with pytest.raises(UsageError, match="code inside a run"):
        permit([name])


def test_folders_without_init_count_only_if_typed(folder):
    (folder / "parts").mkdir()
    (folder / "parts" / "evil.py").write_text("raise RuntimeError('imported')")
    name = "parts.evil:Env"
    with pytest.raises(TrustError, match="parts, a folder without __init__"):
        permit([name])
    assert permit([name], typed=[name]) == (name,)
    assert permit([name]) == (name,)
    (folder / "whole").mkdir()
    (folder / "whole" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "whole" / "inner.py").write_text("")
    assert permit(["whole.inner:Env", "whole.made_at_import:Env"]) == ()


def test_every_folder_of_a_dotted_name_is_judged(folder, tmp_path):
    run = make_run(tmp_path / "stranger")
    (run / "evil.py").write_text("")
    (folder / "whole").mkdir()
    (folder / "whole" / "__init__.py").write_text("")
    (folder / "whole" / "inner").symlink_to(run)
    with pytest.raises(UsageError, match="code inside a run"):
        permit(["whole.inner.evil:Env"])


def test_the_folder_of_a_config_file_counts_as_a_run(folder):
    gift = folder / "gift"
    gift.mkdir()
    (gift / "__init__.py").write_text("")
    with pytest.raises(UsageError, match="code inside a run"):
        permit(["gift:Env"], runs=find_data_folders([gift / "config.yaml"]))
    assert find_data_folders([folder / "config.yaml"]) == []  # the project that the user works in


def test_a_run_is_never_importable(folder, tmp_path, monkeypatch):
    run = make_run(tmp_path / "stranger")
    for place in (run, run / "env"):
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        permit(["CartPole-v1"])
        assert str(place) not in sys.path


@pytest.mark.parametrize("name", ["bridge:true\nx", "mine\u2028x:Env", "mine\x1b[2J:Env"])
def test_control_characters_are_refused(folder, name):
    with pytest.raises(UsageError, match="control characters"):
        permit([name], typed=[name])


def test_a_line_that_can_not_be_remembered_is_asked_once(folder):
    asked = []

    def call():
        raise TrustError("something", "a line\nwith a break")

    with pytest.raises(TrustError):
        retry_if_allowed(call, lambda error: asked.append(error) or True)
    assert len(asked) == 1


def test_the_folder_of_a_run_needs_leave_once(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "module_elsewhere.py").write_text("")
    name = "module_elsewhere:Env"

    def ask():
        return permit([name], folder=str(elsewhere))

    with pytest.raises(TrustError, match="--trust"):
        ask()
    assert str(elsewhere) not in sys.path
    assert retry_if_allowed(ask, lambda error: True) == (name,)
    assert str(elsewhere) in sys.path
    assert ask() == (name,)


def test_where_nothing_can_be_kept_leave_holds_for_the_process(folder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    name = "own_envs_of_trust:make"
    permit([name], typed=[name])
    assert permit([name]) == (name,)


def test_nothing_is_imported_by_looking(folder):
    permit(["own_envs_of_trust:Env"])
    assert locate("own_envs_of_trust:Env").folder == folder
    assert "own_envs_of_trust" not in sys.modules
