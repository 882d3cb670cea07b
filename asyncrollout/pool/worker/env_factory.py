"""Makes an env from its spec: wrong arguments are errors that name them, and a recorded env renders images."""

import contextlib
import copy
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from asyncrollout.errors import MissingExtraError, UsageError
from asyncrollout.pool.wire.codec import PLAIN
from asyncrollout.pool.wire.definitions import MAIN
from asyncrollout.registry import GYMNASIUM, EnvSpec, Factory, check_installed, load_factory, make_gymnasium
from asyncrollout.validation import did_you_mean

_MODE = "render_mode"


def of_this_script(spec: EnvSpec) -> EnvSpec:
    """The spec with what it names in the main script itself: a worker does not run that, and could not find it."""
    if not _is_of_script(spec.factory) and not _is_of_script(spec.text):
        return spec
    text = load_factory(spec.text) if spec.text is not None and _is_of_script(spec.text) else spec.text
    return replace(spec, factory=load_factory(spec.factory) if _is_of_script(spec.factory) else spec.factory, text=text)


def _is_of_script(factory: Factory | None) -> bool:
    return isinstance(factory, str) and factory.startswith(f"{MAIN}:")


def make_env(spec: EnvSpec, *, recorded: bool = False, shared: bool = True) -> Any:
    """The env; one that is recorded is made with a render mode, if it takes one.

    A spec that is `shared` with other envs keeps its keyword arguments, and the env gets copies.
    """
    if recorded and _MODE not in spec.kwargs:
        factory = load_factory(spec.factory)
        if factory is make_gymnasium or _MODE in _keywords(factory):
            try:
                return _make(spec.with_kwargs(render_mode="rgb_array"))
            except Exception:  # it has no such mode; anything else that is wrong is raised now
                return _make(spec, shared=shared)
    return _make(spec, shared=shared)


def _make(spec: EnvSpec, *, shared: bool = True) -> Any:
    try:
        return _call_factory(spec, shared=shared)
    except MissingExtraError:
        raise
    except ImportError:
        check_installed(spec)
        raise


def _call_factory(spec: EnvSpec, *, shared: bool) -> Any:
    factory = load_factory(spec.factory)
    named = spec.name.removeprefix(GYMNASIUM)
    if factory is make_gymnasium and spec.name != named != spec.kwargs.get("id"):  # by its name it was allowed
        raise UsageError(f"id={spec.kwargs.get('id')!r:.100}: its id is the one in its name, {named!r}")
    try:
        return factory(**(own_copies(spec.kwargs) if shared else spec.kwargs))
    except TypeError as error:
        known = _keywords(factory)
        for key in spec.kwargs:
            if known and key not in known:
                raise UsageError(f"it takes no keyword {key!r}{did_you_mean(key, known)}") from error
        raise


def own_copies(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies that share nothing mutable; what cannot be copied, such as a lock or a client, as it is."""
    return {key: _copied(value) for key, value in kwargs.items()}


def _copied(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    for copied in (_by_pickle, copy.deepcopy):  # of long lists, the first takes a quarter of the time
        with contextlib.suppress(Exception):  # its class may do anything
            return copied(value)
    return value


def _by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def _keywords(factory: Callable[..., Any]) -> list[str]:
    """What a factory can be given by name; nothing, where that is open or unknown."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some built-in ones have no signature
        return []
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return []
    return [parameter.name for parameter in parameters]
