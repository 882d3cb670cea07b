"""How an env is made from its spec, so that what cannot be right is told by name; and so that it shows pictures."""

import inspect
from collections.abc import Callable
from typing import Any

from asyncrollout.checks import nearest
from asyncrollout.errors import UsageError
from asyncrollout.registry import GYMNASIUM, EnvSpec, load_factory, make_gymnasium

_MODE = "render_mode"


def make_env(spec: EnvSpec, *, filmed: bool = False) -> Any:
    """The env; one that is filmed is asked for pictures, if it has to be asked when it is made."""
    if filmed and _MODE not in spec.kwargs:
        factory = load_factory(spec.factory)
        if factory is make_gymnasium or _MODE in _keywords(factory):
            try:
                return _make(spec.with_kwargs(render_mode="rgb_array"))
            except Exception:  # it has no such mode; what else is wrong with it is told now
                return _make(spec)
    return _make(spec)


def _make(spec: EnvSpec) -> Any:
    factory = load_factory(spec.factory)
    named = spec.name.removeprefix(GYMNASIUM)
    if factory is make_gymnasium and spec.name != named != spec.kwargs.get("id"):  # by its name it was allowed
        raise UsageError(f"id={spec.kwargs.get('id')!r:.100}: its id is the one in its name, {named!r}")
    try:
        return factory(**spec.kwargs)
    except TypeError as error:
        known = _keywords(factory)
        for key in spec.kwargs:
            if known and key not in known:
                raise UsageError(f"it takes no keyword {key!r}{nearest(key, known)}") from error
        raise


def _keywords(factory: Callable[..., Any]) -> list[str]:
    """What a factory can be given by name; nothing, where that is open or unknown."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some built-in ones do not tell
        return []
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return []
    return [parameter.name for parameter in parameters]
