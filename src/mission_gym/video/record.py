"""Videos of a policy: it plays in an environment that renders, and the frames become a GIF or an MP4.

An environment with a method `make_page()` can instead return an HTML page that replays the episode. The
environment runs in a child process, the policy here. Frames are uint8 [H, W, 3], streamed to the files.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any, Self

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mission_gym.check.devices import device_memory
from mission_gym.data import Array
from mission_gym.env.factory import make_factory
from mission_gym.env.slot import action_rows
from mission_gym.errors import UsageError, WorkerDied, WorkerTimeout
from mission_gym.policy.sampling import draw_noise
from mission_gym.procs import Child, dump_object
from mission_gym.run.environment import Environment
from mission_gym.run.open import OpenRun
from mission_gym.store.files import TEMPORARY, disk_errors
from mission_gym.streams import generator
from mission_gym.vector.pool import open_reply
from mission_gym.video.play import INK, PAGE_METHOD, PAPER, PlayState, RenderInfo

PAGE = ".html"
FORMATS = (".gif", ".mp4", PAGE)
_CLOSE_S = 5.0
_PALETTE_FRAMES = 12  # frames that the palette of a GIF is chosen from
_NUM_EXACT = 48  # colours of the 256 that are kept exactly
_GIF_FPS = 20.0  # many viewers slow down faster GIFs
_LAST_S = 1.5  # how long the last frame of an episode stays
_LABEL_PX = 30


class EnvProcess:
    """One environment in a child process. renders: build it with render_mode="rgb_array"."""

    def __init__(self, environment: Environment, *, renders: bool) -> None:
        request, spec = environment.request, environment.spec
        factory = make_factory(request, render_mode="rgb_array" if renders else None)
        self._environment = environment
        self._child = Child(
            "mission_gym.video.play:serve", dump_object((factory, spec)), on_output=environment.log
        )

    def describe(self) -> RenderInfo:
        return RenderInfo(*self._call("describe"))

    def reset(self, seed: int) -> PlayState:
        """Start the episode of this seed, on the curriculum stage of the evaluations."""
        return PlayState(*self._call("reset", seed, self._environment.recipe(None)[1]))

    def step(self, action: Any) -> PlayState:
        return PlayState(*self._call("step", action))

    def render(self) -> Array:
        """The current frame, [H, W, 3]."""
        return np.asarray(self._call("render"))

    def make_page(self) -> str:
        """The page of the episode, as HTML."""
        return str(self._call("make_page"))

    def _call(self, name: str, *args: Any) -> Any:
        """The child's answer; WorkerError if it dies or does not answer in time."""
        limits, child, env_id = self._environment.limits, self._child, self._environment.spec.env_id
        timeout_s = limits.timeout_s if name in ("step", "render") else limits.reset_timeout_s
        try:
            child.send((name, *args))
            replies = child.wait(timeout_s)
        except WorkerDied as error:
            end, output = child.describe_end(), child.tail().strip()
            last = f"; its last output:\n{output}" if output else ""
            raise WorkerDied(f"{env_id}: its process {end}{last}") from error
        if not replies:
            raise WorkerTimeout(
                f"{env_id}: no answer to {name}() within {timeout_s:.0f} s; the stack:\n{child.read_stack()}"
            )
        return open_reply(replies[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.end(_CLOSE_S)


def read_fps(opened: OpenRun) -> float:
    """Frames per second that the environment declares; UsageError if it can't render."""
    with EnvProcess(opened.environment, renders=False) as env:
        info = env.describe()
    if "rgb_array" not in info.modes:
        raise UsageError(
            f"{opened.environment.spec.env_id} can't be recorded: its render modes are"
            f" {', '.join(info.modes) or 'none'}; it needs rgb_array in metadata['render_modes'], and the"
            " argument render_mode"
        )
    return info.fps


def play_frames(opened: OpenRun, seed: int, *, explore: bool = False) -> Iterator[Array]:
    """Play one episode: a frame before the first step and after each step; the last frame is repeated."""
    with EnvProcess(opened.environment, renders=True) as env:
        for _ in _play(opened, env, seed, explore=explore):
            frame = env.render()
            yield frame
        fps = env.describe().fps
    yield from repeat(frame, round(_LAST_S * fps))


def find_outcome(opened: OpenRun, seed: int) -> str | None:
    """Play the episode that `play_frames` shows, without rendering, and return its outcome."""
    with EnvProcess(opened.environment, renders=False) as env:
        *_, last = _play(opened, env, seed, explore=False)
    return last.outcome


def play_page(opened: OpenRun, seed: int, *, explore: bool = False) -> str:
    """Play one episode and return the environment's page of it; UsageError if it has none."""
    with EnvProcess(opened.environment, renders=False) as env:
        if not env.describe().has_pages:
            raise UsageError(
                f"{opened.environment.spec.env_id} has no pages: it needs a method {PAGE_METHOD}() that"
                " returns the episode as HTML; use .gif or .mp4 [--out]"
            )
        for _ in _play(opened, env, seed, explore=explore):
            pass
        return env.make_page()


def _play(opened: OpenRun, env: EnvProcess, seed: int, *, explore: bool) -> Iterator[PlayState]:
    """Play one episode; yields the state before the first step and after each step."""
    spec, rng = opened.environment.spec, generator("record", seed)
    now = env.reset(seed)
    memory = opened.policy.initial_state(spec.num_agents)
    yield now
    while not now.has_ended:
        noise = draw_noise(spec.action, rng, 1, spec.num_agents)[0] if explore else None
        with device_memory(opened.config, acting=True):
            stored, _, memory = opened.policy.act(now.leaves, now.mask, noise, memory)
        now = env.step(action_rows(spec, spec.action.to_env(stored))[0])
        yield now


def join_videos(videos: Sequence[tuple[str, Iterator[Array]]], width: int) -> Iterator[Array]:
    """Labelled videos side by side, each `width` pixels wide; one that has ended shows its last frame."""
    shown: list[Any] = [None] * len(videos)
    for frames in zip_longest(*(frames for _, frames in videos)):
        for number, ((label, _), frame) in enumerate(zip(videos, frames, strict=True)):
            if frame is not None:
                shown[number] = _add_label(_shrink(frame, width), label)
        yield np.concatenate(shown, axis=1)


def check_video_path(path: Path) -> None:
    """Refuse a path that can't be written, before any time is spent on the episode."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path.name!r} has an unknown ending; videos end in {', '.join(FORMATS)} [--out]")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist; create it or use another one [--out]")


def write_video(paths: Sequence[Path], frames: Iterator[Array], fps: float, gif_width: int = 640) -> None:
    """Write one video to several files, in the formats of their endings; an error leaves none of them."""
    drafts = {path: path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}") for path in paths}
    with ExitStack() as stack:
        writers: list[_Gif | _Mp4] = []
        for path, draft in drafts.items():
            stack.callback(draft.unlink, missing_ok=True)
            writers.append(_Gif(draft, fps, gif_width) if path.suffix.lower() == ".gif" else _Mp4(draft, fps))
            stack.callback(writers[-1].close)
        for frame in frames:
            for writer in writers:
                writer.add(np.ascontiguousarray(frame, np.uint8))
        for path, writer in zip(drafts, writers, strict=True):
            with disk_errors(path):
                writer.finish()
                drafts[path].replace(path)


class _Gif:
    """One palette for all frames, without dithering: pixels that do not change compress well."""

    def __init__(self, path: Path, fps: float, width: int) -> None:
        self._path, self._width, self._count = path, width, 0
        self._every = math.ceil(fps / _GIF_FPS)
        self._ms = round(1000 * self._every / fps)
        self._size = (0, 0)
        self._packed: list[bytes] = []  # compressed, since a long video would not fit into memory

    def add(self, frame: Array) -> None:
        self._count += 1
        if (self._count - 1) % self._every == 0:
            small = _shrink(frame, self._width)
            self._size = small.shape[1], small.shape[0]
            self._packed.append(zlib.compress(small.tobytes(), 1))

    def finish(self) -> None:
        palette = self._choose_palette()
        images = (
            self._unpack(packed).quantize(palette=palette, dither=Image.Dither.NONE)
            for packed in self._packed
        )
        next(images).save(
            self._path, format="GIF", save_all=True, append_images=images, duration=self._ms, loop=0
        )

    def close(self) -> None:
        self._packed.clear()

    def _unpack(self, packed: bytes) -> Image.Image:
        return Image.frombytes("RGB", self._size, zlib.decompress(packed))

    def _choose_palette(self) -> Image.Image:
        """The most common colours exactly, for the background. All other colours count once, whatever their
        number of pixels: viewers look at small moving things."""
        some = self._packed[:: max(1, len(self._packed) // _PALETTE_FRAMES)]
        pixels = np.concatenate([np.asarray(self._unpack(packed)).reshape(-1, 3) for packed in some])
        codes, counts = np.unique(
            pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1]), return_counts=True
        )
        colors = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)
        order = np.argsort(counts, kind="stable")[::-1]
        common, rest = colors[order[:_NUM_EXACT]], colors[order[_NUM_EXACT:]]
        entries = common.reshape(-1).tolist()
        if len(rest):
            entries += Image.fromarray(rest[None]).quantize(256 - _NUM_EXACT).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette(entries)
        return palette


class _Mp4:
    """Streams frames to ffmpeg."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._writer: Any = None

    def add(self, frame: Array) -> None:
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # players expect even sizes
        if self._writer is None:
            self._writer = imageio_ffmpeg.write_frames(
                str(self._path), (width, height), fps=self._fps, macro_block_size=2
            )
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(frame[:height, :width]).tobytes())

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()

    close = finish


def _shrink(frame: Array, width: int) -> Array:
    """Scale a frame down to at most this width."""
    if frame.shape[1] <= width:
        return frame
    height = round(frame.shape[0] * width / frame.shape[1])
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))


def _add_label(frame: Array, label: str) -> Array:
    height, width = frame.shape[:2]
    image = Image.new("RGB", (width, height + _LABEL_PX), PAPER)
    image.paste(Image.fromarray(frame), (0, _LABEL_PX))
    ImageDraw.Draw(image).text((12, 7), label, fill=INK, font=ImageFont.load_default(15))
    return np.asarray(image)
