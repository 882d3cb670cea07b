"""Names to specs: registered envs, entry points, `gymnasium:<id>` and `module:Class`."""

import importlib
import importlib.util
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

from asyncrollout.errors import MissingExtraError, UnknownEnvError, UsageError
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
    """How to make an env and where to run it. Pickled to worker processes.

    `asyncrollout envs` lists `summary`, the task in a line (else the first line of the factory's docstring), and
    `actions`, what an action looks like. `requires` maps each package to import onto the pip command that installs it.
    `splits` are the values that its keyword argument `split` takes: evaluations play "test" unless they say otherwise.
    """

    name: str
    factory: Factory
    _: KW_ONLY
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    text: Factory | None = None
    runs: Placement = "cpu"
    replayable: bool = True
    summary: str = ""
    actions: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    splits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"EnvSpec: an env's name must be a string, not {self.name!r:.100}")
        for role, factory in (("factory", self.factory), ("text", self.text or "")):
            if not isinstance(factory, str) and not callable(factory):
                raise UsageError(f"env {self.name!r}: {role}={factory!r:.100} is {_NOT_A_FACTORY}")
        if self.runs not in _PLACEMENTS:
            raise UsageError(f"env {self.name!r}: runs={self.runs!r} is not one of {', '.join(_PLACEMENTS)}")
        if not isinstance(self.requires, Mapping):
            raise UsageError(f"env {self.name!r}: requires={self.requires!r:.100} must map packages to pip commands")

    @property
    def text_interface(self) -> Factory:
        """The factory of its text interface: its own, or the generic one for Gymnasium spaces."""
        return self.text or "asyncrollout.text.spaces:SpaceText"

    def with_kwargs(self, **kwargs: Any) -> "EnvSpec":
        return replace(self, kwargs={**self.kwargs, **kwargs})


_registered: dict[str, EnvSpec] = {}


def register_env(name: str, factory: Factory, **fields: Any) -> EnvSpec:
    """Register an env in this process under `name`, replacing any earlier one; `fields` are those of EnvSpec."""
    if not name or ":" in name:
        raise UsageError(f"env name {name!r}: a registered name is not empty and has no ':'")
    spec = EnvSpec(name=name, factory=factory, **fields)
    _registered[name] = spec
    return spec


EnvRef = EnvSpec | str | Callable[..., Any]
"""How an env is named: by its spec, by a name, or by its class or a function that makes it."""


def find_env(env: EnvRef) -> EnvSpec:
    """The spec of an env: registered names first, then entry points, then import paths."""
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
    """The spec of a class or function, named by its import path so that a later run can find it."""
    if not callable(factory):
        instance = ", but an env itself: give its class" if callable(getattr(factory, "step", None)) else ""
        raise UsageError(
            f"{factory!r:.100} is not the name of an env, its class, a function that makes it or an EnvSpec{instance}"
        )
    named = factory if hasattr(factory, "__qualname__") else type(factory)  # of a functools.partial, the class
    runs: Placement = "io" if inspect.iscoroutinefunction(getattr(factory, "step", None)) else "cpu"
    return EnvSpec(f"{named.__module__}:{named.__qualname__}", factory, runs=runs)


def check_exists(spec: EnvSpec) -> None:
    """Raise unless the factory of a spec can be loaded; the env itself is not created."""
    try:
        if load_factory(spec.factory) is make_gymnasium:
            import gymnasium  # noqa: PLC0415 (as below)

            gymnasium.spec(spec.kwargs.get("id", ""))
    except UsageError:
        raise
    except Exception as error:  # its module may raise anything
        check_installed(spec)
        raise UnknownEnvError(f"no env is called {spec.name!r}: {type(error).__name__}: {error}") from error


def missing_packages(spec: EnvSpec) -> dict[str, str]:
    """The packages of `spec.requires` that are not installed, with their pip commands."""
    return {package: pip for package, pip in spec.requires.items() if not _is_installed(package)}


def check_installed(spec: EnvSpec) -> None:
    """Raise the error with the pip command if a package that the env requires is missing."""
    for package, pip in missing_packages(spec).items():
        raise MissingExtraError(f"env {spec.name!r} needs the package {package!r}, which is not installed: {pip}")


def _is_installed(package: str) -> bool:
    if sys.modules.get(package) is not None:
        return True
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # of the package that it is a part of
        return False


def is_import_path(name: str) -> bool:
    """Whether finding this env may run code that its name points to; Gymnasium also imports what precedes a colon."""
    return ":" in name.removeprefix(GYMNASIUM)


def env_names() -> list[str]:
    """Every name registered in this process or by an installed package."""
    return sorted({*_registered, *_entry_points()})


def load_factory(factory: Factory) -> Callable[..., Any]:
    """The class or function that an import path names; anything else is returned as it is."""
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
        raise UsageError(f"{factory!r} is a {type(target).__name__}, not a class or function that makes an env")
    made: Callable[..., Any] = target
    return made


def allowed_env(name: str, *, allow_import: bool) -> EnvSpec:
    """The spec of a name given by a user; import paths are refused unless allowed."""
    if not is_import_path(name):
        return find_env(name)
    if not allow_import:
        raise UsageError(f"env {name!r} is an import path, which runs that module's code: allow it with --allow-import")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module, _, attribute = name.partition(":")
    with suppress(Exception):  # creating the env raises it again, with its traceback
        if isinstance(spec := getattr(importlib.import_module(module), attribute), EnvSpec):
            return spec
    return find_env(name)


def make_gymnasium(id: str, **kwargs: Any) -> Any:  # noqa: A002 (Gymnasium's own name for it)
    import gymnasium  # noqa: PLC0415 (takes a fifth of a second)

    return gymnasium.make(id, disable_env_checker=True, **kwargs)


@cache
def _entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _load_entry_point(name: str) -> EnvSpec:
    points = list({point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}.values())
    if len(points) > 1:
        claims = " and ".join(repr(point.value) for point in points)
        raise UsageError(f"env {name!r} is registered by several packages, as {claims}: open it by one of these paths")
    (point,) = points
    spec = point.load()
    if not isinstance(spec, EnvSpec):
        raise UsageError(f"entry point {name!r} of group {ENTRY_POINT_GROUP!r} is not an EnvSpec: {point.value!r}")
    return spec
