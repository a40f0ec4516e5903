"""The packages that Mission Gym needs: each is imported, and asked for what is used of it, in a trial."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from mission_gym.check.findings import Finding
from mission_gym.check.trials import Attempt

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


@dataclass(frozen=True, slots=True)
class Package:
    """One dependency of pyproject.toml."""

    requirement: str  # as pip takes it
    module: str
    loss: str  # what can't be done without it
    use: str = ""  # code that uses it

    @property
    def name(self) -> str:
        return re.split("[<>=]", self.requirement)[0]

    @property
    def code(self) -> str:
        return f"import {self.module}\n{self.use}"


_NOTHING = "nothing can be trained without it"
_FILMS = "missions and classic control can't be shown, filmed or played by hand"
# What fails because of another package of the table names that one.
PACKAGES = (
    Package("numpy>=1.26", "numpy", _NOTHING, "assert (numpy.ones((2, 2)) @ numpy.ones(2)).sum() == 4"),
    Package("torch>=2.4", "torch", _NOTHING),
    Package("psutil>=5.9", "psutil", "memory and processes can't be watched"),
    Package("pydantic>=2.7", "pydantic", "no config can be read"),
    Package("pyyaml>=6", "yaml", "no config can be read"),
    Package("tyro>=0.9", "tyro", "no command but this one can be started"),
    Package("rich>=13", "rich", "no command but this one can be started", "import rich.console"),
    Package("gymnasium>=1.1", "gymnasium", _NOTHING),
    Package("scipy>=1.12", "scipy", "compiled learners use its BLAS", "import scipy.linalg.cython_blas"),
    Package(
        "numba>=0.60", "numba", "learners and missions are compiled with it",
        "assert numba.njit(lambda number: number + 1)(1) == 2",
    ),
    Package("safetensors>=0.4", "safetensors", "no checkpoint can be kept", "import safetensors.numpy"),
    Package("cloudpickle>=2.2", "cloudpickle", "no environment can be sent to a worker"),
    Package("greenlet>=3.0", "greenlet", "environments of coroutines can't be stepped"),
    Package("threadpoolctl>=3.1", "threadpoolctl", "NumPy's threads can't be capped"),
    Package("tensorboardX>=2.6", "tensorboardX", "nothing can be written for TensorBoard"),
    Package("nvidia-ml-py>=12", "pynvml", "a GPU can't be watched"),
    Package("pygame-ce>=2.5", "pygame", _FILMS),
    Package("pillow>=10.1", "PIL", "no GIF can be made", "import PIL.Image"),
    Package("jinja2>=3.1", "jinja2", "no report can be written and no dashboard shown"),
    Package("starlette>=0.40", "starlette", "no dashboard can be shown", "import starlette.applications"),
    Package("uvicorn>=0.30", "uvicorn", "no dashboard can be shown"),
    Package("imageio-ffmpeg>=0.5", "imageio_ffmpeg", "no MP4 can be made", "imageio_ffmpeg.get_ffmpeg_exe()"),
)  # fmt: skip


def judge_package(package: Package, trial: Attempt) -> Finding:
    """Its version; or the error, and the one command that mends it or the package that it came from."""
    name = package.name
    if is_too_old(package):
        return Finding(
            "error", name, f"{name} {read_version(name)} is too old", package.loss, _install(package)
        )
    if not trial.error:
        return Finding("ok", name, f"{name} {read_version(name)}".strip())
    missing = _MISSING.match(trial.error)
    if missing is not None and missing[1] == package.module:
        return Finding("error", name, f"{name} is not installed", package.loss, _install(package))
    cause = missing[1] if missing is not None else _top_module(trial.file)
    other = next((each for each in PACKAGES if each.module == cause != package.module), None)
    fix = _install(package) if other is None else f"mend {other.name} first"
    return Finding("error", name, f"{name} does not work: {trial.error}", package.loss, fix)


def is_too_old(package: Package) -> bool:
    """Whether the version that is installed is below the one that is needed."""
    minimum = package.requirement.partition(">=")[2]
    here, needed = (
        list(map(int, re.findall(r"\d+", text))) for text in (read_version(package.name), minimum)
    )
    return bool(here) and here[: len(needed)] < needed


def tell_too_old() -> str:
    """What to do about packages that another one has put back to an old version; empty if none is."""
    old = [package for package in PACKAGES if is_too_old(package)]
    if not old:
        return ""
    here = ", ".join(f"{package.name} {read_version(package.name)}" for package in old)
    needed = " ".join(f'"{package.requirement}"' for package in old)
    why = "too old for Mission Gym, maybe since another package asked for it"
    return f"{here} is {why}; run: pip install {needed}"


def read_version(name: str) -> str:
    """The version that is installed, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _install(package: Package) -> str:
    return f'pip install --force-reinstall "{package.requirement}"'


def _top_module(file: str) -> str:
    """The outermost package of a file, by the search path."""
    roots = [root for root in map(Path, sys.path) if Path(file).is_relative_to(root)]
    if not file or not roots:
        return ""
    root = max(roots, key=lambda each: len(each.parts))
    return Path(file).relative_to(root).parts[0].removesuffix(".py")
