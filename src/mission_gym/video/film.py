"""Films: a policy plays in an environment that draws, and the pictures become a GIF or an MP4; or a page that
plays the episode anew, where the environment makes one (`make_page()`).

Pictures flow one by one, uint8 [H, W, 3], from the environment into the files.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mission_gym.check.devices import device_memory
from mission_gym.data import Array
from mission_gym.env.slot import action_rows
from mission_gym.errors import UsageError
from mission_gym.policy.sampling import draw_noise
from mission_gym.run.open import OpenRun
from mission_gym.store.files import TEMPORARY, disk_errors
from mission_gym.streams import generator
from mission_gym.video.studio import PAGE_METHOD, Studio

PAGE = ".html"
FORMATS = (".gif", ".mp4", PAGE)
_PALETTE_PICTURES = 12  # that a GIF's colours are taken from
_COMMON = 48  # colours of 256 that are kept as they are
_GIF_FPS = 20.0  # viewers slow down what is faster
_LAST_S = 1.5  # how long the end of an episode stays
_LABEL_PX = 30
_INK, _PAPER = (228, 234, 242), (16, 21, 30)


def read_fps(opened: OpenRun) -> float:
    """Pictures a second as the environment wants them; UsageError if it can't draw."""
    with Studio(opened.environment, draws=False) as studio:
        modes, fps, _ = studio.about()
    if "rgb_array" not in modes:
        raise UsageError(
            f"{opened.environment.spec.env_id} can't be filmed: its render modes are"
            f" {', '.join(modes) or 'none'}; an environment that draws has rgb_array in"
            " metadata['render_modes'] and takes render_mode"
        )
    return fps


def play_frames(opened: OpenRun, seed: int, *, explore: bool = False) -> Iterator[Array]:
    """Play one episode; a picture before the first step and after each, the last one for a while."""
    with Studio(opened.environment, draws=True) as studio:
        for _ in _play(opened, studio, seed, explore=explore):
            frame = studio.take_picture()
            yield frame
        fps = studio.about().fps
    yield from repeat(frame, round(_LAST_S * fps))


def play_page(opened: OpenRun, seed: int, *, explore: bool = False) -> str:
    """Play one episode, and let the environment make a page of it; UsageError if it makes none."""
    with Studio(opened.environment, draws=False) as studio:
        if not studio.about().makes_pages:
            raise UsageError(
                f"{opened.environment.spec.env_id} makes no pages of its episodes: it has no method"
                f" {PAGE_METHOD}() that returns one as HTML; use .gif or .mp4 [--out]"
            )
        for _ in _play(opened, studio, seed, explore=explore):
            pass
        return studio.make_page()


def _play(opened: OpenRun, studio: Studio, seed: int, *, explore: bool) -> Iterator[None]:
    """Play one episode in a studio; yields before the first step and after each."""
    spec, rng = opened.environment.spec, generator("record", seed)
    scene = studio.begin(seed)
    state = opened.policy.initial_state(spec.num_agents)
    yield
    while not scene.ended:
        noise = draw_noise(spec.action, rng, 1, spec.num_agents)[0] if explore else None
        with device_memory(opened.config, acting=True):
            stored, _, state = opened.policy.act(scene.leaves, scene.mask, noise, state)
        scene = studio.step(action_rows(spec, spec.action.to_env(stored))[0])
        yield


def place_beside(films: Sequence[tuple[str, Iterator[Array]]], width: int) -> Iterator[Array]:
    """Labelled films side by side, each `width` pixels wide; one that has ended shows its last picture."""
    shown: list[Array | None] = [None] * len(films)
    while True:
        running = False
        for column, (label, frames) in enumerate(films):
            frame = next(frames, None)
            if frame is not None:
                running, shown[column] = True, _add_label(_fit(frame, width), label)
        if not running:
            return
        yield np.concatenate([picture for picture in shown if picture is not None], axis=1)


def check_film_path(path: Path) -> None:
    """Refuse what is not a film before an hour was spent on it."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path.name!r} has no known ending; films end in {', '.join(FORMATS)} [--out]")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist; make it or name another [--out]")


def write_films(paths: Sequence[Path], frames: Iterator[Array], fps: float, gif_width: int = 640) -> None:
    """Write one film into files of the kinds that their endings name; what breaks leaves none of them."""
    drafts = {path: path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}") for path in paths}
    with ExitStack() as stack:
        films: list[_Gif | _Mp4] = []
        for path, draft in drafts.items():
            stack.callback(draft.unlink, missing_ok=True)
            films.append(_Gif(draft, fps, gif_width) if path.suffix.lower() == ".gif" else _Mp4(draft, fps))
            stack.callback(films[-1].close)
        for frame in frames:
            for film in films:
                film.add(np.ascontiguousarray(frame, np.uint8))
        for path, film in zip(drafts, films, strict=True):
            with disk_errors(path):
                film.finish()
                drafts[path].replace(path)


class _Gif:
    """One palette for all pictures, without dithering: what does not move stays equal and packs well."""

    def __init__(self, path: Path, fps: float, width: int) -> None:
        self._path = path
        self._every = math.ceil(fps / _GIF_FPS)
        self._ms = round(1000 * self._every / fps)
        self._width = width
        self._count = 0
        self._size = (0, 0)
        self._packed: list[bytes] = []  # a long film would not fit otherwise

    def add(self, frame: Array) -> None:
        self._count += 1
        if (self._count - 1) % self._every == 0:
            picture = _fit(frame, self._width)
            self._size = picture.shape[1], picture.shape[0]
            self._packed.append(zlib.compress(picture.tobytes(), 1))

    def finish(self) -> None:
        palette = self._choose_palette()
        drawn = (
            self._unpack(packed).quantize(palette=palette, dither=Image.Dither.NONE)
            for packed in self._packed
        )
        next(drawn).save(
            self._path, format="GIF", save_all=True, append_images=drawn, duration=self._ms, loop=0
        )

    def close(self) -> None:
        self._packed.clear()

    def _unpack(self, packed: bytes) -> Image.Image:
        return Image.frombytes("RGB", self._size, zlib.decompress(packed))

    def _choose_palette(self) -> Image.Image:
        """The commonest colours as they are, for the ground; of the others each counts once, however few
        pixels have it: small units are what one looks at."""
        some = self._packed[:: max(1, len(self._packed) // _PALETTE_PICTURES)]
        pixels = np.concatenate([np.asarray(self._unpack(packed)).reshape(-1, 3) for packed in some])
        codes, counts = np.unique(
            pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1]), return_counts=True
        )
        colors = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)
        order = np.argsort(counts, kind="stable")[::-1]
        common, rest = colors[order[:_COMMON]], colors[order[_COMMON:]]
        entries = common.reshape(-1).tolist()
        if len(rest):
            entries += Image.fromarray(rest[None]).quantize(256 - _COMMON).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette(entries)
        return palette


class _Mp4:
    """Pictures into ffmpeg, as they come."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._fps = fps
        self._writer: Any = None

    def add(self, frame: Array) -> None:
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # players want even sizes
        if self._writer is None:
            self._writer = imageio_ffmpeg.write_frames(
                str(self._path), (width, height), fps=self._fps, macro_block_size=2
            )
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(frame[:height, :width]).tobytes())

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _fit(frame: Array, width: int) -> Array:
    """Shrink a picture to at most this width."""
    if frame.shape[1] <= width:
        return frame
    height = round(frame.shape[0] * width / frame.shape[1])
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))


def _add_label(frame: Array, label: str) -> Array:
    height, width = frame.shape[:2]
    picture = Image.new("RGB", (width, height + _LABEL_PX), _PAPER)
    picture.paste(Image.fromarray(frame), (0, _LABEL_PX))
    ImageDraw.Draw(picture).text((12, 7), label, fill=_INK, font=ImageFont.load_default(15))
    return np.asarray(picture)
