"""Points that only the env object itself can show, without a pool that copies what it returns."""

import inspect
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.pool.worker.env_runner import check_reset, reset_arguments, reset_options
from asyncrollout.registry import load_factory
from asyncrollout.testing.cases import Case, CheckedEpisode, MethodCall, own_copy
from asyncrollout.testing.compare import same, shown
from asyncrollout.testing.points import Skipped, point
from asyncrollout.types import TextOptions
from asyncrollout.video.frames import ImageReader

Look = Callable[["DirectPoints", str, Any], None]
"""Called in every state with the env, the place in the episode in words, and the raw observation."""

_NOT_FOR_THE_ENV = ("text", "worker", "expert")
_GENERATORS = ("random", "numpy.random")
_MARK = 0x5EED  # a state that no env leaves by chance


class DirectPoints:
    """An env and its text interface as plain objects in this process."""

    def __init__(self, case: Case) -> None:
        kwargs = {name: value for name, value in case.kwargs.items() if name not in _NOT_FOR_THE_ENV}
        kwargs = own_copy({**case.spec.kwargs, **kwargs})
        fields = TextOptions.__struct_fields__ if case.has_text else ()
        self.options = TextOptions(**{name: kwargs.pop(name) for name in fields if name in kwargs})
        self.kwargs, self.given = kwargs, own_copy(kwargs)
        self.env: Any = load_factory(case.spec.factory)(**kwargs)
        self.text: Any = None
        self._task = case.task
        if case.has_text:
            self.text = load_factory(case.spec.text_interface)(self.env, self.options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if callable(getattr(self.env, "close", None)):
            with suppress(Exception, SystemExit):  # there is a point for that
                await settled(self.env.close())

    async def reset(self, seed: int) -> Any:
        options = reset_options(self.env, own_copy(self._task))
        return await settled(self.env.reset(**reset_arguments(seed, options, takes_options=check_reset(self.env))))

    async def walk(self, episode: CheckedEpisode, look: Look) -> None:
        """Play an episode, looking at every state."""
        observation, _ = await self.reset(episode.seed)
        look(self, f"seed {episode.seed}, reset", observation)
        done = False
        for turn, action in enumerate(episode.actions, start=1):
            if isinstance(action, MethodCall):
                await self.call(action)
                continue
            if self.text is not None:  # some interfaces read a reply by what they described
                self.text.describe(observation)
            for raw in self.read(action):
                if not done:
                    observation, _, terminated, truncated, _ = await settled(self.env.step(raw))
                    done = bool(terminated or truncated)
                    look(self, f"seed {episode.seed}, step {turn}", observation)

    async def call(self, made: MethodCall) -> Any:
        owners = (self.text, self.env, getattr(self.env, "unwrapped", None))
        found = getattr(next((owner for owner in owners if hasattr(owner, made.method)), self.env), made.method)
        return await settled(found(*made.args, **made.kwargs)) if callable(found) else found

    def read(self, action: Any) -> Sequence[Any]:
        if self.text is None or not isinstance(action, str):
            return (action,)
        parsed = self.text.parse(action)
        return parsed.actions[: self.options.max_actions_per_turn] if parsed.valid else ()


async def settled(result: Any) -> Any:
    """What a method returned, be it a coroutine or not."""
    return await result if inspect.isawaitable(result) else result


async def walk_all(case: Case, look: Look) -> None:
    for episode in case.episodes:
        async with DirectPoints(case) as direct:
            case.played += 1
            case.steps += len(episode.actions)
            await direct.walk(episode, look)


@point(
    "reset() and step() leave the global random state alone", "use a generator of the env's own, from reset()'s seed"
)
async def own_randomness(case: Case) -> list[str]:
    found = random.getstate(), np.random.get_state()  # noqa: NPY002 (what others may have touched)
    random.seed(_MARK)
    np.random.seed(_MARK)  # noqa: NPY002
    marked = random.getstate(), np.random.get_state()  # noqa: NPY002
    seen: list[str] = []

    def look(_: DirectPoints, place: str, __: Any) -> None:
        now = random.getstate(), np.random.get_state()  # noqa: NPY002
        changed = [name for name, state, mark in zip(_GENERATORS, now, marked, strict=True) if not same(state, mark)]
        seen.extend(f"{place} changed the state of `{name}`" for name in changed)

    try:
        await walk_all(case, look)
    finally:
        random.setstate(found[0])
        np.random.set_state(found[1])  # noqa: NPY002
    return seen[:1]


@point("an env leaves its keyword arguments alone", "copy what the env changes: list(given), dict(given), given.copy()")
async def leaves_arguments(case: Case) -> list[str]:
    async with DirectPoints(case) as direct:
        given = direct.given
        if not given:
            raise Skipped("it is opened without any")
        await direct.walk(case.episodes[0], lambda *_: None)
    changed = [name for name, value in given.items() if not same(value, direct.kwargs[name])]
    return [f"{name!r} was {shown(given[name])}, and is {shown(direct.kwargs[name])}" for name in changed]


async def notes_on_observations(case: Case) -> list[str]:
    """No point of the contract, as a pool copies what it is given; but worth a look where there is none."""
    given: list[tuple[str, Any, Any]] = []
    await walk_all(case, lambda _, place, seen: given.append((place, seen, own_copy(seen))))
    for place, now, kept in given:
        if not same(now, kept):
            was = f"the observation of {place} was {shown(kept)}, and is {shown(now)} after later steps"
            return [f"{was}: fine in a pool, which copies it"]
    return []


@point("an observation is in observation_space", "correct the space (its shape, bounds, dtype), or the observation")
async def observation_space(case: Case) -> list[str]:
    async with DirectPoints(case) as direct:
        space: Any = getattr(direct.env, "observation_space", None)
    if not callable(getattr(space, "contains", None)):
        raise Skipped("it has no observation_space")
    outside: list[str] = []

    def look(_: DirectPoints, place: str, seen: Any) -> None:
        if not space.contains(seen):
            outside.append(f"{place}: {shown(seen)} of {_kind(seen)} is not in {space}")

    await walk_all(case, look)
    return outside[:1]


@point(
    "render() gives a picture that a video can show, or text",
    "return an array (height, width, 3) of uint8; grey, RGBA and floats up to 1 are taken, too",
)
async def render(case: Case) -> list[str]:
    async with DirectPoints(case) as direct:
        if not callable(getattr(direct.env, "render", None)):
            raise Skipped("it has no render()")
        if getattr(direct.env, "render_mode", "") in (None, "human"):
            raise Skipped(
                f"its render_mode is {direct.env.render_mode!r}: pass render_mode='rgb_array' to have it checked"
            )
        await direct.reset(case.episodes[0].seed)
        picture = await settled(direct.env.render())
    if isinstance(picture, str):
        return []
    try:
        ImageReader().read(picture)
    except UsageError as error:
        return [str(error)]
    return []


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"shape {value.shape} and dtype {value.dtype}"
    return f"type {type(value).__name__}"
