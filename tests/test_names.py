"""Names of the package: each class name means one thing, and so does each file name."""

import ast
from collections import defaultdict
from pathlib import Path

import asyncrollout

PACKAGE = Path(asyncrollout.__file__).parent
FACADES = {
    *("EnvService", "VideoEnvService"),  # VAGEN's own names for its synchronous form of ours
    *("FrozenLakeEnv", "SokobanEnv"),  # RAGEN's and VAGEN's own names for theirs
    "Placement",  # RLinf's own name for where a process runs
}
SAME = {
    "__init__": "",
    "bodies": "of HTTP: of responses that a policy gets, of requests that a service gets",
    "codec": "of messages: HTTP's and the workers'",
    "compare": "the command, and the comparison of values in `check_env`",
    "files": "of batches, of runs, of videos",
    "kinds": "of values, and of spaces",
    "logs": "the loggers, and how the command line shows them",
    "messages": "between pool and worker, and between pool and server",
    "policy": "the OpenAI one, and the one around all that is recorded",
    "progress": "of an episode, and of a run in the terminal",
    "reading": "of configurations, and of stored values",
    "replay": "the command, and an env's",
    "run": "the command, and the journal of a run",
    "samples": "the command, and those of a batch",
    "server": "of envs, and of reports",
    "text": "of envs: in a worker, of any space, in `check_env`",
    "writer": "of a run's files, and of a video",
}
"""File names that several folders have, and what each means there: the same of its folder's subject."""


def test_each_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(PACKAGE)))
    several = {name: found for name, found in places.items() if len(found) > 1 and name not in FACADES}
    assert several == {}


def test_each_file_name_means_one_thing() -> None:
    places = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if "dropin" not in path.parts:  # other systems' own names
            places[path.stem].add(path)
    assert {name for name, found in places.items() if len(found) > 1} == SAME.keys()
