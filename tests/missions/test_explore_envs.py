"""The mission in both forms, on generated sites over real HTTP: equal, seeded, resumable."""

import asyncio

import numpy as np
import pytest

from local_sites import LocalSite, page
from mission_gym.errors import ConfigError, EnvContractError, UsageError
from mission_gym.procs import start_companion
from mission_gym_missions.explore.aio_env import AsyncExploreEnv
from mission_gym_missions.explore.env import ExploreEnv
from mission_gym_missions.explore.explorer import OUTCOMES
from mission_gym_missions.explore.observation import BACK, FIRST_LINK, NEXT, STOP
from mission_gym_missions.explore.settings import make_companion, read_settings
from mission_gym_missions.explore.site import Site, SiteRules

FAST = {"latency_ms": 0, "jitter_ms": 0}


@pytest.fixture(scope="module")
def served():
    """Keyword arguments of environments on sites whose server is at work for all tests."""
    companion = start_companion(make_companion(read_settings(FAST)))
    yield FAST | companion.kwargs
    del companion  # with the last who holds it the server ends


def draw(mask, rng):
    """A legal action other than to stop."""
    return int(rng.choice(np.flatnonzero(mask)[1:]))


def play(env, seed, num_steps):
    """Random steps; every number that comes back."""
    rng, shown = np.random.default_rng(seed), []
    obs, info = env.reset(seed=seed)
    for _ in range(num_steps):
        action = draw(info["action_mask"], rng)
        obs, *rest, info = env.step(action)
        shown.append(
            (obs.tobytes(), rest, info["outcome"], info["reward_terms"], info.get("episode_metrics"))
        )
        if any(rest[1:]):
            obs, info = env.reset()
    return shown


async def play_async(env, seed, num_steps):
    """The same with the coroutine form."""
    rng, shown = np.random.default_rng(seed), []
    obs, info = await env.reset(seed=seed)
    for _ in range(num_steps):
        action = draw(info["action_mask"], rng)
        obs, *rest, info = await env.step(action)
        shown.append(
            (obs.tobytes(), rest, info["outcome"], info["reward_terms"], info.get("episode_metrics"))
        )
        if any(rest[1:]):
            obs, info = await env.reset()
    await env.close()
    return shown


def test_both_forms_are_equal_whatever_the_latency(served):
    plain = play(ExploreEnv(**served), 3, 150)
    assert any(step[2] for step in plain)
    other = start_companion(make_companion(read_settings({"latency_ms": 1, "jitter_ms": 2})))

    async def side_by_side():
        envs = [AsyncExploreEnv(**served), AsyncExploreEnv(latency_ms=1, jitter_ms=2, **other.kwargs)]
        return await asyncio.gather(*(play_async(env, 3, 150) for env in envs))

    assert asyncio.run(side_by_side()) == [plain, plain]


def test_both_forms_are_equal_among_hostile_pages():
    given = FAST | {"faults": 0.5, "timeout_s": 0.5}
    companion = start_companion(make_companion(read_settings(given)))
    given |= companion.kwargs
    plain = play(ExploreEnv(**given), 1, 60)
    assert asyncio.run(play_async(AsyncExploreEnv(**given), 1, 60)) == plain


def test_sites_differ_by_seed_and_episode_unless_one_is_named(served):
    env = ExploreEnv(**served)
    starts = [env.reset(seed=seed)[0].tobytes() for seed in (1, 2, 1)]
    homes = []
    for _ in range(3):
        env.reset()
        homes.append((env.explorer.task.home, env.explorer.task.target))
    assert starts[0] == starts[2] != starts[1]
    assert len(set(homes)) == 3
    fixed = ExploreEnv(site=7, **served)
    for seed in (1, 2):
        fixed.reset(seed=seed)
        assert fixed.explorer.task.home == f"{served['served_at']}7/"
    env.close()
    fixed.close()


def test_terms_sum_to_the_reward_and_every_outcome_is_reached(served):
    env, outcomes = ExploreEnv(**served), set()
    for name in ("greedy", "greedy", "breadth_first", "stop"):
        obs, info = env.reset(seed=len(outcomes))
        ended = False
        while not ended:
            action = STOP if name == "stop" else env.baselines[name](obs, info)
            obs, reward, terminated, truncated, info = env.step(action)
            assert sum(info["reward_terms"].values()) == reward
            assert env.observation_space.contains(obs)
            ended = terminated
            assert not truncated
        outcomes.add(info["outcome"])
        assert info["episode_metrics"]["requests"] == env.explorer.counts.requests
    assert outcomes == {"found", "budget", "gave_up"} == set(OUTCOMES) - {"site_down"}
    with pytest.raises(UsageError, match="after the end of the episode; reset first"):
        env.step(0)
    env.close()


def test_a_page_that_was_seen_costs_no_request_and_going_back_is_the_way_one_came():
    replies = {
        "/": page("home", "/a", "/go"),
        "/a": page("first", "/", "/b"),
        "/b": page("second", "/a"),
        "/go": page("", status=302)._replace(location="/a"),
    }
    with LocalSite(replies) as site:
        env = ExploreEnv(base_url=site.url, targets="/never words", allow_loopback=True, requests_per_s=0)
        env.reset(seed=0)

        def memory():
            seen = env.explorer.memory
            return [seen.graph.urls[node].rpartition("/")[2] for node in seen.trail]

        env.step(FIRST_LINK)
        assert memory() == ["", "a"]
        env.step(BACK)
        env.step(FIRST_LINK)  # what was not visited comes first: a redirect to a page that was seen
        assert memory() == ["", "a"]
        assert env.explorer.counts.requests == 4
        asked = list(site.asked)
        env.step(FIRST_LINK + 1)  # home
        env.step(FIRST_LINK)
        assert memory() == ["", "a", "", "a"]
        assert site.asked == asked == ["/robots.txt", "/never", "/", "/a", "/go", "/a"]
        _, _, _, _, info = env.step(NEXT)  # there is none: a step, and nothing else
        assert memory() == ["", "a", "", "a"]
        assert info["reward_terms"]["step"] < 0
        env.close()


def test_baselines_beat_each_other_in_the_order_that_the_mission_promises(served):
    env, found = ExploreEnv(**served), {}
    for name, policy in env.baselines.items():
        found[name] = 0
        for seed in range(6):
            obs, info = env.reset(seed=seed)
            while info["outcome"] is None:
                obs, _, _, _, info = env.step(policy(obs, info))
            found[name] += info["outcome"] == "found"
    assert found["random"] <= 1
    assert found["breadth_first"] <= 1
    assert found["greedy"] >= 2
    env.close()


def test_own_sites_give_their_targets_from_a_list_or_a_file(tmp_path):
    replies = {"/": page("home", "/a", "/b"), "/a": page("first page"), "/b": page("second page")}
    listed = tmp_path / "targets.txt"
    listed.write_text("# what to find\n/a\n\n/b the second one\n")
    with LocalSite(replies) as site:
        own = {"base_url": site.url, "allow_loopback": True, "requests_per_s": 0}
        for targets in ("/a, /b the second one", str(listed)):
            env, tasks = ExploreEnv(targets=targets, **own), set()
            for seed in range(8):
                env.reset(seed=seed)
                tasks.add((env.explorer.task.target.rpartition("/")[2], env.explorer.task.wanted))
            assert tasks == {("a", frozenset({"first", "page"})), ("b", frozenset({"the", "second", "one"}))}
            env.close()
        env = ExploreEnv(targets="/gone", **own)
        with pytest.raises(EnvContractError, match=r"/gone cannot be a target \(status\); name a page"):
            env.reset(seed=0)


@pytest.mark.parametrize("target", ["/old", "/old the wanted words"])
def test_a_target_is_found_at_the_address_it_redirects_to_and_asked_for_once(target):
    moved = page(status=301)._replace(location="/new")
    replies = {"/a%20b": page("home", "/new"), "/old": moved, "/new": page("new")}
    with LocalSite(replies) as site:
        env = ExploreEnv(base_url=f"{site.url}a b", targets=target, allow_loopback=True, requests_per_s=0)
        for seed in range(2):
            env.reset(seed=seed)
            *_, info = env.step(FIRST_LINK)
            assert info["outcome"] == "found"
        env.close()
        assert site.asked.count("/old") == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"latency": 3}, r"latency=3 is unknown \(did you mean 'latency_ms'\?\)"),
        ({"num_pages": 0}, "num_pages=0: input should be greater than or equal to 50; correct it .num_pages"),
        ({"faults": 2.0}, "faults=2.0: input should be less than or equal to 1"),
        ({"targets": "/a"}, "targets='/a' is only for a site given by base_url"),
        (
            {"base_url": "https://example.org/", "site": 3, "targets": "/a"},
            "site=3 is only for generated sites",
        ),
        ({"base_url": "example.org"}, "'example.org' is not a web address; use one like https://"),
        ({"base_url": "https://example.org/"}, "base_url needs targets"),
        (
            {"base_url": "https://example.org/", "targets": "https://a.net/"},
            "is not a page of https://example",
        ),
        ({"base_url": "https://example.org/", "targets": ","}, "names no page"),
        ({"rules_file": "no-such.yaml"}, "the file can't be read"),
        ({"render_mode": "human"}, "render_mode='human' is unknown; use rgb_array or none"),
    ],
)
def test_wrong_arguments_are_explained(given, match):
    with pytest.raises(UsageError, match=match):
        ExploreEnv(**({"served_at": "http://127.0.0.1:9/"} | given))


def test_rules_of_the_users_own_are_checked_with_their_line(tmp_path, served):
    rules = tmp_path / "rules.yaml"
    shipped = read_settings({}).make_explorer("http://127.0.0.1:9/").rules
    rules.write_text("budget: 1\nsteps_per_request: 4\nmax_links: 5\nterms: {}\n")
    with pytest.raises(ConfigError, match=r"rules\.yaml, line 1"):
        ExploreEnv(rules_file=str(rules), **served)
    terms = "".join(f"  {name}: 0\n" for name in shipped.terms.model_dump())
    rules.write_text(f"budget: 9\nsteps_per_request: 1\nmax_links: 5\nterms:\n{terms}")
    env = ExploreEnv(rules_file=str(rules), **served)
    assert env.action_space.n == FIRST_LINK + 5
    assert ExploreEnv.snapshot_kwargs()["rules_file"].endswith("explore/rules.yaml")
    env.close()


def test_wrong_calls_are_explained(served):
    env = ExploreEnv(**served)
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\)"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="action 99 does not exist; actions are 0 to 18"):
        env.step(99)
    with pytest.raises(UsageError, match="is not an integer"):
        env.step(1.5)
    with pytest.raises(UsageError, match=r"render\(\) without a render mode"):
        env.render()
    env.close()


def test_a_site_is_a_function_of_its_number_and_every_link_of_it_answers():
    site, again = (Site(11, SiteRules()) for _ in range(2))
    statuses, queue, seen = {}, ["/11/"], {"/11/"}
    for path in queue:
        reply = site.reply(path.removeprefix("/11"))
        assert reply == again.reply(path.removeprefix("/11"))
        statuses[reply.status] = statuses.get(reply.status, 0) + 1
        for link in reply.body.decode().split('href="')[1:]:
            target = link.partition('"')[0]
            if target not in seen and len(seen) < 1500:
                seen.add(target)
                queue.append(target)
    assert len(queue) == 1500
    assert set(statuses) == {200, 302, 404, 500}
    assert statuses[200] > 1200
    assert site.reply("/no/such/page").status == site.reply("/article/99/0/0").status == 404
