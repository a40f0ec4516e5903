"""The environment of a film, in a process of its own: one that crashes or hangs there is told in one message.

`Studio` is this side: it asks for an episode, its steps, pictures and a page. The policy stays here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Env, Factory, make_factory
from mission_gym.errors import EnvContractError, MissionGymError, WorkerDied, WorkerTimeout, describe
from mission_gym.procs import Child, Link, describe_error, dump_object
from mission_gym.run.environment import Environment
from mission_gym.vector.pool import open_reply

PAGE_METHOD = "make_page"
_DEFAULT_FPS = 30.0
_CLOSE_S = 5.0


class Scene(NamedTuple):
    """What a policy sees before it acts."""

    leaves: Leaves  # [rows, ...]
    mask: Array | None  # [rows, ...]
    ended: bool


class About(NamedTuple):
    """What an environment says of its pictures."""

    modes: tuple[str, ...]
    fps: float
    makes_pages: bool


class Studio:
    """One environment at work elsewhere. draws: it is built to give pictures."""

    def __init__(self, environment: Environment, *, draws: bool) -> None:
        request, spec = environment.request, environment.spec
        factory = make_factory(request, render_mode="rgb_array") if draws else make_factory(request)
        self._environment = environment
        self._child = Child(
            "mission_gym.video.studio:serve", dump_object((factory, spec)), on_output=environment.log
        )

    def about(self) -> About:
        return About(*self._ask("about"))

    def begin(self, seed: int) -> Scene:
        """Begin the episode of this seed, on the stage that evaluations are on."""
        return Scene(*self._ask("begin", seed, self._environment.recipe(None)[1]))

    def step(self, action: Any) -> Scene:
        return Scene(*self._ask("step", action))

    def take_picture(self) -> Array:
        """What the environment shows, [H, W, 3]."""
        picture: Array = self._ask("take_picture")
        return picture

    def make_page(self) -> str:
        """The page that the environment makes of the episode."""
        page: str = self._ask("make_page")
        return page

    def _ask(self, name: str, *args: Any) -> Any:
        """The answer of the service; WorkerError if it dies or does not answer."""
        limits, child, env_id = self._environment.limits, self._child, self._environment.spec.env_id
        timeout_s = limits.timeout_s if name in ("step", "take_picture") else limits.reset_timeout_s
        try:
            child.send((name, *args))
            replies = child.wait(timeout_s)
        except WorkerDied as error:
            words = child.tail().strip()
            raise WorkerDied(
                f"{env_id}: the process that played it {child.describe_end()}"
                + (f"; its last words:\n{words}" if words else "")
            ) from error
        if not replies:
            raise WorkerTimeout(
                f"{env_id}: no answer to {name} within {timeout_s:.0f} s; the stack:\n{child.read_stack()}"
            )
        return open_reply(replies[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.end(_CLOSE_S)


@contextmanager
def telling(call: str) -> Iterator[None]:
    """Within, what the environment raises is told in one sentence."""
    try:
        yield
    except Exception as error:  # border: the user's environment
        raise EnvContractError(f"{call} raised {describe(error)}") from error


def take_picture(env: Env) -> Array:
    """What the environment shows, [H, W, 3]; EnvContractError if it can't."""
    with telling("render()"):
        picture = np.asarray(env.render())
    if picture.ndim != 3 or picture.shape[2] != 3 or not np.issubdtype(picture.dtype, np.number):
        raise EnvContractError(
            f"render() gave {picture.dtype} of shape {picture.shape}; with render_mode='rgb_array' it must "
            "give a picture, uint8 [H, W, 3]"
        )
    return picture


class _Service:
    """The other side of a Studio, method by method."""

    def __init__(self, factory: Factory, spec: EnvSpec) -> None:
        self.env, self._spec = factory(), spec
        self._seed = 0
        self._slot = make_slot(lambda: self.env, spec, 0, lambda episode: self._seed)

    def about(self) -> tuple[Any, ...]:
        metadata = self.env.metadata
        modes = tuple(str(mode) for mode in metadata.get("render_modes") or ())
        return (
            modes,
            float(metadata.get("render_fps") or _DEFAULT_FPS),
            self.env.has_wrapper_attr(PAGE_METHOD),
        )

    def begin(self, seed: int, options: dict[str, Any] | None) -> tuple[Any, ...]:
        self._seed = seed
        self._slot.reset(0, options=options)
        return self._show()

    def step(self, action: Any) -> tuple[Any, ...]:
        self._slot.step(action)
        return self._show()

    def take_picture(self) -> Array:
        return take_picture(self.env)

    def make_page(self) -> str:
        with telling(f"{PAGE_METHOD}()"):
            return str(self.env.get_wrapper_attr(PAGE_METHOD)())

    def _show(self) -> tuple[Any, ...]:
        slot, num_rows = self._slot, self._spec.num_agents
        leaves = slot.obs if self._spec.agents else tuple(np.asarray(leaf)[None] for leaf in slot.obs)
        return leaves, None if slot.mask is None else slot.mask.reshape(num_rows, -1), slot.ended


def serve(link: Link, setup: bytes) -> None:
    """Build the environment, and answer until the other side is gone."""
    with ExitStack() as last:
        service: _Service | None = None
        while True:
            name, *args = link.recv()
            try:
                if service is None:
                    service = _Service(*pickle.loads(setup))
                    last.callback(service.env.close)
                reply: tuple[Any, ...] = ("ok", getattr(service, name)(*args))
            except MissionGymError as error:
                reply = ("error", *describe_error(error))
            link.send(reply)
