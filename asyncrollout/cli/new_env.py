"""`new-env`: a small environment that works, as a package of its own, to be changed into something else."""

import importlib.util
import re
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from asyncrollout.cli.terminal.output import OutputParam
from asyncrollout.errors import UsageError
from asyncrollout.registry import env_names

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_ENV = '''\
"""A corridor with a treasure at one of its cells: change it into a game of your own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from asyncrollout import EnvSpec, Parsed, TextOptions
from asyncrollout.text.replies import read_choice, turn_format

SPEC = EnvSpec(
    name="NAME",
    factory="NAME:CLASSEnv",
    text="NAME:CLASSText",
    summary="walk along a corridor to the treasure",  # `asyncrollout envs` lists it
    actions="Left, Right",
    # runs="light" keeps the env on the event loop: for steps of microseconds. The default is a worker process.
)


class CLASSEnv:
    """Walk along a corridor to the treasure."""

    def __init__(self, *, length: int = 7, max_steps: int = 20) -> None:
        if length < 2:
            raise ValueError(f"length={length}: a corridor has two cells at least")
        self.length, self.max_steps = length, max_steps

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        rng = np.random.default_rng(seed)  # never a global generator: the same seed gives the same episode everywhere
        self.cell, self.treasure = (int(cell) for cell in rng.choice(self.length, 2, replace=False))
        self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.cell
        self.cell = min(max(self.cell + action, 0), self.length - 1)
        self.steps += 1
        success = self.cell == self.treasure
        truncated = not success and self.steps >= self.max_steps
        info = {"success": success, "action_is_effective": self.cell != before}
        return self._seen(), 1.0 if success else -0.1, success, truncated, info

    def _seen(self) -> str:
        cells = ["_"] * self.length
        cells[self.treasure] = "T"
        cells[self.cell] = "P"
        return "".join(cells)


class CLASSText:
    """What a language model reads and writes."""

    def __init__(self, env: CLASSEnv, options: TextOptions) -> None:
        self.env, self.options = env, options

    def parse(self, reply: str) -> Parsed:
        """The actions that a reply asks for; it never raises."""
        return read_choice(reply, self.options, {"left": -1, "right": 1})

    def describe(self, observation: str) -> str:
        return observation

    def system_prompt(self) -> str:
        rules = "You are P in a corridor. Walk to the treasure T. Your actions are: Left, Right."
        return f"{rules}\\n\\n{turn_format(self.options, 'Left')}"

    def anchor(self) -> tuple[int, int]:
        """Optional: a key of the state, by which GiGPO compares steps of different episodes."""
        return (self.env.cell, self.env.treasure)

    def solve(self) -> str:
        """Optional: an expert's next reply, to try out a trainer without a model."""
        action = "Left" if self.env.treasure < self.env.cell else "Right"
        return f"<think>The treasure is there.</think><answer>{action}</answer>"
'''

_TEST = '''\
"""The contract that every rollout relies on, and the rules of the game."""

import asyncio

from asyncrollout.testing import check_env

from NAME import SPEC, CLASSEnv


def test_keeps_the_contract() -> None:
    asyncio.run(check_env(SPEC))


def test_the_treasure_ends_the_episode() -> None:
    env = CLASSEnv(length=2)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(env.treasure - env.cell)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
'''

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "DISTRIBUTION"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["asyncrollout"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."asyncrollout.envs"]
NAME = "NAME:SPEC"

[tool.hatch.build]
include = ["NAME.py"]
dev-mode-dirs = ["."]
"""

_README = """\
# NAME

An environment for asyncrollout. In this directory:

```console
$ pip install -e '.[test]'          # from then on, every run finds it by its name
$ asyncrollout check-env NAME
$ pytest
```

Without installing it: `asyncrollout check-env NAME:SPEC --allow-import`.
"""


def new_env(
    name: Annotated[str, Parameter(help="Name of the environment and its module: lowercase letters, digits and _.")],
    /,
    *,
    dir: Annotated[Path, Parameter(help="Parent of its new directory (default: the current one).")] = Path(),  # noqa: A002
    output: OutputParam,
) -> None:
    """Create a small working environment of your own, with a test.

    Example: asyncrollout new-env maze --dir projects
    """
    target = dir / name
    _check(name, target)
    words = {
        "DISTRIBUTION": name.replace("_", "-"),
        "CLASS": "".join(word.capitalize() for word in name.split("_")),
        "NAME": name,
    }
    files = {f"{name}.py": _ENV, f"test_{name}.py": _TEST, "pyproject.toml": _PYPROJECT, "README.md": _README}
    try:
        target.mkdir(parents=True)
        for file, template in files.items():
            text = re.sub("|".join(words), lambda found: words[found[0]], template)
            (target / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    output.record({"env": name, "directory": str(target), "files": list(files)})
    output.show(f"Wrote {target}: {', '.join(files)}")
    output.say(f"Next: cd {target} && asyncrollout check-env {name}:SPEC --allow-import")


def _check(name: str, target: Path) -> None:
    if name in env_names():
        raise UsageError(f"an env called {name!r} is installed already: choose another name")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a module: use lowercase letters, digits and _, such as my_maze"
        )
    if iskeyword(name):
        raise UsageError(f"{name!r} is a Python keyword: choose another name")
    if target.exists():
        raise UsageError(f"{str(target)!r} exists already: choose another name or --dir")
    found = importlib.util.find_spec(name)
    if name in sys.builtin_module_names or (found is not None and found.origin is not None):
        raise UsageError(f"a module called {name!r} is installed already: choose another name")
