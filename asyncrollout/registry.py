"""Names to specs: registered envs, entry points, `gymnasium:<id>` and `module:Class`."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from asyncrollout.errors import UnknownEnvError, UsageError
from asyncrollout.types import Placement
from asyncrollout.validation import did_you_mean

ENTRY_POINT_GROUP = "asyncrollout.envs"
GYMNASIUM = "gymnasium:"
_PLACEMENTS = ("cpu", "light", "io")
_NOT_A_FACTORY = "neither a class, nor a function that makes an env, nor the import path of one ('module:Class')"

Factory = str | Callable[..., Any]
"""A class or function, or its import path `module:attribute`."""


@dataclass(frozen=True)
class EnvSpec:
    """How to make an env and where to run it. Travels to worker processes, so all of it must pickle."""

    name: str
    factory: Factory
    _: KW_ONLY
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    text: Factory | None = None
    runs: Placement = "cpu"
    replayable: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"EnvSpec: an env's name is a text, not {self.name!r:.100}")
        for role, factory in (("factory", self.factory), ("text", self.text or "")):
            if not isinstance(factory, str) and not callable(factory):
                raise UsageError(f"env {self.name!r}: {role}={factory!r:.100} is {_NOT_A_FACTORY}")
        if self.runs not in _PLACEMENTS:
            raise UsageError(f"env {self.name!r}: runs={self.runs!r} is not one of {', '.join(_PLACEMENTS)}")

    @property
    def text_interface(self) -> Factory:
        """What makes its text interface: its own, or the one for any env with Gymnasium's spaces."""
        return self.text or "asyncrollout.text.spaces:SpaceText"

    def with_kwargs(self, **kwargs: Any) -> "EnvSpec":
        return replace(self, kwargs={**self.kwargs, **kwargs})


_registered: dict[str, EnvSpec] = {}


def register_env(name: str, factory: Factory, **fields: Any) -> EnvSpec:
    """Make `name` known to this process; `fields` are EnvSpec's. A name can be registered again."""
    if not name or ":" in name:
        raise UsageError(f"env name {name!r}: a registered name is not empty and has no ':'")
    spec = EnvSpec(name=name, factory=factory, **fields)
    _registered[name] = spec
    return spec


EnvRef = EnvSpec | str | Callable[..., Any]
"""How an env is named: by its spec, by a name, or by its class or a function that makes it."""


def find_env(env: EnvRef) -> EnvSpec:
    """The spec of an env. Registered names come first, then entry points, then import paths."""
    if isinstance(env, EnvSpec):
        return env
    if not isinstance(env, str):
        return _spec_of(env)
    name = env
    if name in _registered:
        return _registered[name]
    if name in _entry_points():
        return _load_entry_point(name)
    if name.startswith(GYMNASIUM) and len(name) > len(GYMNASIUM):
        gym_id = name.removeprefix(GYMNASIUM)
        return EnvSpec(name=name, factory="asyncrollout.registry:make_gymnasium", kwargs={"id": gym_id})
    if ":" in name:
        return EnvSpec(name=name, factory=name)
    as_gymnasium = [GYMNASIUM + name] if re.search(r"-v\d+$", name) else []
    forms = "(an env is named by its registered name, 'gymnasium:<id>' or 'module:Class')"
    raise UnknownEnvError(f"no env is called {name!r}{did_you_mean(name, [*env_names(), *as_gymnasium])} {forms}")


def _spec_of(factory: Any) -> EnvSpec:
    """That of a class or function, under its import path, by which a later run finds it again."""
    if not callable(factory):
        instance = ", but an env itself: give its class" if callable(getattr(factory, "step", None)) else ""
        raise UsageError(
            f"{factory!r:.100} is not the name of an env, its class, a function that makes it or an EnvSpec{instance}"
        )
    named = factory if hasattr(factory, "__qualname__") else type(factory)  # of a functools.partial, the class
    runs: Placement = "io" if inspect.iscoroutinefunction(getattr(factory, "step", None)) else "cpu"
    return EnvSpec(f"{named.__module__}:{named.__qualname__}", factory, runs=runs)


def check_exists(spec: EnvSpec) -> None:
    """Raise if there is nothing behind a spec; it is looked for, and not made."""
    try:
        if load_factory(spec.factory) is make_gymnasium:
            import gymnasium  # noqa: PLC0415 (as below)

            gymnasium.spec(spec.kwargs.get("id", ""))
    except UsageError:
        raise
    except Exception as error:  # whatever its module raises
        raise UnknownEnvError(f"no env is called {spec.name!r}: {type(error).__name__}: {error}") from error


def is_import_path(name: str) -> bool:
    """Whether to find this env may run code that its name points to; Gymnasium, too, imports what precedes a colon."""
    return ":" in name.removeprefix(GYMNASIUM)


def env_names() -> list[str]:
    """Every name that is registered here or by an installed package."""
    return sorted({*_registered, *_entry_points()})


def load_factory(factory: Factory) -> Callable[..., Any]:
    """The class or function behind an import path, or itself."""
    if not isinstance(factory, str):
        return factory
    module_name, _, attribute = factory.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{factory!r} is not an import path: write 'module:Class'")
    target: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise UsageError(f"module {module_name!r} has no {attribute!r}{did_you_mean(part, dir(target))}")
        target = getattr(target, part)
    if not callable(target):
        raise UsageError(f"{factory!r} is a {type(target).__name__}, not something that makes an env")
    made: Callable[..., Any] = target
    return made


def allowed_env(name: str, *, allow_import: bool) -> EnvSpec:
    """The spec of a name from outside; one that would import code is refused unless that is allowed."""
    if not is_import_path(name):
        return find_env(name)
    if not allow_import:
        raise UsageError(f"env {name!r} is an import path, which runs that module's code: allow it with --allow-import")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module, _, attribute = name.partition(":")
    with suppress(Exception):  # where the env is made, it is told with its traceback
        if isinstance(spec := getattr(importlib.import_module(module), attribute), EnvSpec):
            return spec
    return find_env(name)


def make_gymnasium(id: str, **kwargs: Any) -> Any:  # noqa: A002 (Gymnasium's own name for it)
    import gymnasium  # noqa: PLC0415 (a fifth of a second, paid only by those who use it)

    return gymnasium.make(id, disable_env_checker=True, **kwargs)


@cache
def _entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _load_entry_point(name: str) -> EnvSpec:
    points = list({point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}.values())
    if len(points) > 1:
        claims = " and ".join(repr(point.value) for point in points)
        raise UsageError(f"env {name!r} is offered by several packages, as {claims}: open it by one of these paths")
    (point,) = points
    spec = point.load()
    if not isinstance(spec, EnvSpec):
        raise UsageError(f"entry point {name!r} of group {ENTRY_POINT_GROUP!r} gives no EnvSpec: {point.value!r}")
    return spec
