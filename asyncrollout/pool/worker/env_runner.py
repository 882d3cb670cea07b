"""One environment where it lives: made from its spec, reset, stepped, described; the same code on every backend."""

import inspect
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from asyncrollout.errors import EnvError, UsageError
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.failure import clip
from asyncrollout.pool.wire.messages import Op, OpenRequest
from asyncrollout.pool.wire.raised import is_own, repr_of
from asyncrollout.pool.wire.replay_log import RecordedCall
from asyncrollout.pool.worker.env_factory import make_env
from asyncrollout.pool.worker.replay import replay
from asyncrollout.pool.worker.text import Fields, TextDialogue
from asyncrollout.pool.worker.video import record_frame
from asyncrollout.protocols import Camera, has_snapshots
from asyncrollout.registry import EnvSpec, load_factory
from asyncrollout.validation import did_you_mean

T = TypeVar("T")
_SEQUENCES = (tuple, list)
_MISSING = object()
_NEEDED_RESET = ": an env's reset is `def reset(self, *, seed=None, options=None)`, as Gymnasium's"


def run_now(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, as those of a synchronous env."""
    try:
        steps.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    steps.close()
    raise EnvError("one of this env's methods is a coroutine, but its step() is not")


def reset_options(env: Any, task: Any, member: int = 0) -> dict[str, Any] | None:
    """What an env is reset with: its task, and if it plays by chance, which member of a group it is."""
    options = {} if task is None else {"task": task}
    if getattr(env, "plays_by_chance", False):
        options["member"] = member
    return options or None


def reset_arguments(seed: int, options: dict[str, Any] | None, *, takes_options: bool) -> dict[str, Any]:
    if not takes_options and options is not None:
        raise UsageError(f"a task comes as options={{'task': ...}}, which its reset() does not take{_NEEDED_RESET}")
    return {"seed": seed, "options": options} if takes_options else {"seed": seed}


def is_async(spec: EnvSpec) -> bool:
    """Whether an `io` env's steps are coroutines, which run on the event loop, by its class."""
    if spec.runs != "io":
        return False
    try:
        factory = load_factory(spec.factory)
    except BaseException as error:  # its module may raise anything; raised again where the env is made
        if not is_own(error):
            raise
        return False
    return inspect.iscoroutinefunction(getattr(factory, "step", None))


def _no_tick() -> None:
    """Nobody watches the clock."""


class EnvRunner:
    """An env, its text interface if it is opened with one, and the count of actions so far.

    The methods are coroutines so that one text serves synchronous and asynchronous envs; those of a
    synchronous env never wait (see `run_now`).
    """

    def __init__(self, opening: OpenRequest, *, shared: bool = True) -> None:
        """`shared` is an opening that other envs are made of, too; one that came to a worker is not."""
        self.opening = opening
        spec = opening.spec
        self.env = make_env(spec, recorded=opening.camera is not None, shared=shared)
        for method in ("reset", "step"):
            if not callable(getattr(self.env, method, None)):
                raise UsageError(f"{type(self.env).__qualname__} has no {method}() method: an env needs reset and step")
        self._takes_options = check_reset(self.env)
        self.is_async = inspect.iscoroutinefunction(self.env.step)
        if self.is_async and not is_async(spec):
            raise UsageError(f"env {spec.name!r} has coroutines for methods: register its class with runs='io'")
        self.is_io = spec.runs == "io"
        self.last: Fields | None = None  # the present episode's last outcome, as the env gave it
        self._dialogue: TextDialogue | None = None
        if opening.text:
            interface = load_factory(spec.text_interface)(self.env, opening.options)
            env = self.env if self.has_snapshots else None
            self._dialogue = TextDialogue(interface, opening.options, expert=opening.expert, env=env)
        self.camera: Camera | None = None
        if opening.camera is not None:
            factory, options = opening.camera
            tell = getattr(self._dialogue.interface, "tell", str) if self._dialogue is not None else str
            self.camera = load_factory(factory)(self.env, options, tell)

    async def perform(self, op: Op, payload: Any, tick: Callable[[], None] = _no_tick) -> Any:
        """Any call but the one that makes the env; `tick` is called before each part of a long one."""
        match op:
            case Op.STEP:
                return await self.step(payload)
            case Op.RESET:
                return await self.reset(*payload)
            case Op.REPLAY:
                return await replay(self, payload, tick)
            case Op.CALL:
                return await self._call(payload)
            case Op.RENDER:
                return await self.render()
            case Op.SNAPSHOT:
                state = await self.snapshot(for_file=payload)
                return state, self.last, self.lacks if state is None else ""
            case Op.END_VIDEO:
                return None if self.camera is None else self.camera.end()
            case Op.CLOSE:
                return await self.close()
        raise UsageError(f"an env knows no {op!r}")

    async def reset(self, seed: int, task: Any, member: int = 0, episode: int = 0) -> Fields:
        options = reset_options(self.env, task, member)
        result = self.env.reset(**reset_arguments(seed, options, takes_options=self._takes_options))
        if self.is_async:
            result = await result
        if not isinstance(result, _SEQUENCES) or len(result) != 2:
            raise EnvError(f"reset() must return (observation, info), not {clip(repr_of(result), 200)}")
        observation, info = result[0], dict(_as_dict(result[1]))
        if self.camera is not None:
            self.camera.begin(episode)
            await record_frame(self.env, self.camera, is_async=self.is_async)
            self.camera.end_turn()
        if self._dialogue is not None:
            observation = self._dialogue.begin(observation, info)
        self.last = observation, 0.0, False, False, info
        return self.last

    def step_now(self, action: Any) -> Fields:
        """A synchronous env's step. That of a raw env costs no coroutine."""
        if self._dialogue is not None or self.camera is not None:
            return run_now(self.step(action))
        try:
            self.last = fields = _checked(self.env.step(action))
        except Exception as error:
            self._note_bad_action(error, action)
            raise
        return fields

    async def step(self, action: Any) -> Fields:
        if self._dialogue is not None:
            fields = await self._dialogue.step(action, self._raw_step)
        else:
            fields = await self._raw_step(action)
        if self.camera is not None:
            self.camera.end_turn()
        self.last = fields
        return fields

    async def _raw_step(self, action: Any) -> Fields:
        try:
            result = self.env.step(action)
            fields = _checked(await result if self.is_async else result)
        except Exception as error:
            self._note_bad_action(error, action)
            raise
        if self.camera is not None:
            await record_frame(self.env, self.camera, action, fields[1], is_async=self.is_async)
        return fields

    def _note_bad_action(self, error: Exception, action: Any) -> None:
        space = getattr(self.env, "action_space", None)
        if space is None:
            return
        try:
            inside = space.contains(action)
        except Exception:  # a space that cannot even look at the action
            inside = False
        if not inside:
            shown = clip(repr_of(action), 200)
            error.add_note(f"The action {shown} is not in the env's action space, {repr_of(space)}.")

    async def render(self) -> Any:
        if not callable(getattr(self.env, "render", None)):
            raise UsageError(f"env {self.opening.spec.name!r} has no render()")
        picture = self.env.render()
        return await picture if inspect.isawaitable(picture) else picture

    async def call(self, called: RecordedCall) -> Any:
        """A method or attribute of the text interface or of the env."""
        return (await self._call(called))[0]

    async def _call(self, called: RecordedCall) -> tuple[Any, bool]:
        """What it gives, and whether it is a plain attribute, which was only read."""
        method = called.method
        if method.startswith("_"):
            raise UsageError(f"{method!r} is private to env {self.opening.spec.name!r}")
        interface = None if self._dialogue is None else self._dialogue.interface
        for owner in (interface, self.env, getattr(self.env, "unwrapped", None)):  # Gymnasium wraps its envs
            found = getattr(owner, method, _MISSING)  # once: it may be a property that does something
            if found is not _MISSING:
                break
        else:
            offered = sorted({*dir(interface), *dir(self.env)} if interface else dir(self.env))
            raise UsageError(f"it offers no {method!r}{did_you_mean(method, offered)}")
        if not callable(found):
            if called.args or called.kwargs:
                raise UsageError(
                    f"{method!r} of env {self.opening.spec.name!r} is an attribute, and takes no arguments"
                )
            return found, True
        result = found(*called.args, **called.kwargs)
        return await result if inspect.isawaitable(result) else result, False

    @property
    def has_snapshots(self) -> bool:
        return has_snapshots(self.env)

    @property
    def is_described_by_snapshot(self) -> bool:
        """Whether what the text interface keeps is part of a snapshot, if it keeps anything."""
        return self._dialogue is None or self._dialogue.is_untouched

    @property
    def lacks(self) -> str:
        """Why it has no snapshots; empty if it has."""
        if not self.has_snapshots:
            return "it has no snapshot()"
        if self.is_described_by_snapshot or self._dialogue is None:
            return ""
        name = type(self._dialogue.interface).__qualname__
        return f"{name} keeps state of its own: give it `snapshot() -> bytes` and `restore(bytes)`, as the env has them"

    async def snapshot(self, *, for_file: bool = False) -> bytes | None:
        """The state, if the env and its text interface can give it; `for_file` means without pickles."""
        if self.lacks:
            return None
        raw = self.env.snapshot()
        raw = await raw if inspect.isawaitable(raw) else raw
        content = (None if self._dialogue is None else await self._dialogue.snapshot(), raw)
        try:
            return codec.encode_exact(content) if for_file else codec.encode(content)
        except codec.INEXACT as error:
            name = self.opening.spec.name
            raise UsageError(f"env {name!r}: its observations have no safe file form: {error}") from error

    async def restore(self, state: bytes, *, trusted: bool = True) -> None:
        try:
            dialogue, raw = codec.Unpacker(trusted=trusted).decode(state)
        except Exception as error:  # numpy raises all sorts for types that are none
            raise UsageError(f"this is not a snapshot of ours: {error}") from error
        if (dialogue is None) != (self._dialogue is None):
            there, here = ("without", "with") if dialogue is None else ("with", "without")
            raise UsageError(f"this snapshot was taken {there} the text interface, and the env was opened {here} it")
        done = self.env.restore(raw)
        if inspect.isawaitable(done):
            await done
        if self._dialogue is not None:
            await self._dialogue.restore(dialogue)

    async def close(self) -> list[Any] | None:
        """Close the env; what its camera has, if there is one."""
        try:
            result = self._close_env()
            if inspect.isawaitable(result):
                await result
        finally:
            footage = None if self.camera is None else self.camera.end()
        return footage

    def _close_env(self) -> Any:
        close = getattr(self.env, "close", None)
        return close() if callable(close) else None


def check_reset(env: Any) -> bool:
    """Whether `reset` takes options; it must take a seed, or no episode could be played again."""
    try:
        parameters = inspect.signature(env.reset, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # some built-in ones have no signature
        return True
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    if "seed" not in parameters:
        raise UsageError(f"the reset() of {type(env).__qualname__} takes no seed{_NEEDED_RESET}")
    return "options" in parameters


def _checked(result: Any) -> Fields:
    if not isinstance(result, _SEQUENCES) or len(result) != 5:
        raise EnvError(
            f"step() must return (observation, reward, terminated, truncated, info), not {clip(repr_of(result), 200)}"
        )
    observation, reward, terminated, truncated, info = result
    try:
        reward = float(reward)
    except (TypeError, ValueError):
        raise EnvError(f"the reward must be a number, not {clip(repr_of(reward), 200)}") from None
    if not math.isfinite(reward):
        raise EnvError(f"the reward must be a finite number, not {reward}")
    return observation, reward, bool(terminated), bool(truncated), _as_dict(info)


def _as_dict(info: Any) -> dict[str, Any]:
    if type(info) is dict:
        return info
    if not isinstance(info, Mapping):
        raise EnvError(f"info must be a dict, not {type(info).__name__}")
    return dict(info)
