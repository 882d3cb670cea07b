"""Names of the package: each class name means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import asyncrollout

PACKAGE = Path(asyncrollout.__file__).parent
FACADES = {"EnvService", "VideoEnvService"}  # VAGEN's own names for its synchronous form of ours


def test_each_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(PACKAGE)))
    several = {name: found for name, found in places.items() if len(found) > 1 and name not in FACADES}
    assert several == {}
