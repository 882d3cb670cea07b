"""Wrong use is an error at once, which names the env and the remedy; other envs are not affected."""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from asyncrollout import (
    ClosedError,
    EnvBuildError,
    EnvError,
    EnvPool,
    EnvSpec,
    RolloutError,
    UnknownEnvError,
    UsageError,
)
from asyncrollout.testing import same
from tests.envs import tiny as tiny_envs
from tests.playing import ACTIONS, COUNTER, ECHO, ENVS, MISSHAPEN, PATIENCE, TEXT, expected, play


@pytest.mark.parametrize(
    ("options", "raised"),
    [
        ({"backend": "thread"}, "backend='thread' is not valid; available: process, inline"),
        ({"backend": "Process"}, "did you mean 'process'"),
        ({"backend": None}, "backend=None is not valid; available: process, inline"),
        ({"workers": 0}, "workers=0 is not a whole number from 1"),
        ({"workers": -1}, "workers=-1"),
        ({"workers": True}, "workers=True"),
        ({"workers": 1.5}, "workers=1.5"),
        ({"workers": "2"}, "workers='2'"),
        ({"step_timeout": -1}, "step_timeout=-1 is not a number of seconds above 0"),
        ({"step_timeout": 0}, "step_timeout=0"),
        ({"step_timeout": float("nan")}, "step_timeout=nan"),
        ({"step_timeout": "5"}, "step_timeout='5'"),
        ({"reset_timeout": -0.5}, "reset_timeout=-0.5"),
        ({"reset_timeout": None}, "reset_timeout=None"),
        ({"memory_limit": 0}, "memory_limit=0"),
        ({"memory_limit": 1.5}, "memory_limit=1.5"),
        ({"recover": "restart"}, "recover='restart' is not valid; available: replay, snapshot, none"),
        ({"max_restarts": -1}, "max_restarts=-1 is not a whole number from 0"),
    ],
    ids=str,
)
def test_wrong_options_of_a_pool(options: dict[str, Any], raised: str) -> None:
    with pytest.raises(UsageError) as caught:
        EnvPool(**options)
    assert raised in str(caught.value)


async def test_pool_must_be_entered_and_not_left(options: dict[str, Any]) -> None:
    pool = EnvPool(**options)
    with pytest.raises(ClosedError, match="use `async with EnvPool"):
        pool.open(COUNTER)
    async with pool:
        env = await pool.open(COUNTER)
        unopened = pool.open(COUNTER)
        await env.reset(seed=1)
    with pytest.raises(ClosedError):
        pool.open(COUNTER)
    with pytest.raises(RolloutError):
        await unopened
    for call in (lambda: env.reset(seed=1), lambda: env.step(1), lambda: env.call("total"), env.fork, env.snapshot):
        with pytest.raises(ClosedError):
            await call()
    await env.close()
    with pytest.raises(UsageError, match="make another one"):
        await pool.__aenter__()


Use = Callable[[EnvPool], Awaitable[Any]]


def opening(spec: EnvSpec | str, **kwargs: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(spec, **kwargs):
            pass

    return use


def resetting(spec: EnvSpec | str, *, seed: Any = 1, task: Any = None, **kwargs: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(spec, **kwargs) as env:
            await env.reset(seed=seed, task=task)

    return use


def stepping(spec: EnvSpec | str, *actions: Any, **kwargs: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(spec, **kwargs) as env:
            await env.reset(seed=1)
            for action in actions:
                await env.step(action)

    return use


def asking(method: str, *args: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(COUNTER) as env:
            await getattr(env, method)(*args)

    return use


def closed(method: str, *args: Any) -> Use:
    async def use(pool: EnvPool) -> None:
        async with pool.open(COUNTER) as env:
            await env.reset(seed=1)
        await env.close()
        await getattr(env, method)(*args)

    return use


async def step_unopened(pool: EnvPool) -> None:
    await pool.open(COUNTER).step(1)


async def open_twice(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env, env:
        pass


async def step_after_failure(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env:
        await env.reset(seed=1)
        with pytest.raises(EnvError):
            await env.step("x")
        await env.step(1)


async def render_nothing(pool: EnvPool) -> None:
    async with pool.open(ECHO) as env:
        await env.reset(seed=1)
        await env.render()


async def restore_anothers(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env, pool.open(ECHO) as other:
        await env.reset(seed=1)
        await other.restore(await env.snapshot())


class HalfARecord:
    """Has a camera, but no method that takes an env."""

    camera = ("videos:Camera", None)


async def fork_into_nothing(pool: EnvPool) -> None:
    async with pool.open(COUNTER) as env:
        await env.reset(seed=1)
        await env.fork("pool")  # type: ignore[arg-type]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


UNSOLVED = EnvSpec(name="unsolved", factory=f"{ENVS}:Counter", text=f"{ENVS}:UnsolvedText")
WRONG_USES: dict[str, tuple[Use, type[RolloutError], list[str]]] = {
    "factory fails": (opening(f"{ENVS}:Refuses"), EnvBuildError, [f"{ENVS}:Refuses", "no licence for this simulator"]),
    "unknown keyword": (
        opening(COUNTER, colour="red"),
        UsageError,
        ["env 'counter'", "no keyword 'colour'", "limit"],
    ),
    "unknown class": (opening(f"{ENVS}:Countr"), UsageError, ["Countr", "did you mean 'Counter'"]),
    "unknown module": (opening("no_such:Env"), RolloutError, ["env 'no_such:Env'", "no_such"]),
    "gymnasium id in an option": (
        opening("gymnasium:CartPole-v1", id="this:CartPole-v1"),
        UsageError,
        ["this:CartPole-v1", "the one in its name, 'CartPole-v1'"],
    ),
    "unknown gymnasium id": (opening("gymnasium:CartPol-v1"), RolloutError, ["gymnasium:CartPol-v1", "CartPole"]),
    "not an env": (opening("builtins:dict"), UsageError, ["env 'builtins:dict'", "dict has no reset()"]),
    "coroutines without io": (opening(f"{ENVS}:AsyncCounter"), UsageError, ["AsyncCounter", "runs='io'"]),
    "unknown name": (opening("countr"), UnknownEnvError, ["no env is called 'countr'"]),
    "not a name": (opening(5), UsageError, ["not the name of an env"]),  # type: ignore[arg-type]
    "expert of a raw env": (opening(COUNTER, expert=True), UsageError, ["env 'counter'", "expert=True"]),
    "expert without a solver": (
        resetting(UNSOLVED, expert=True),
        UsageError,
        ["env 'unsolved'", "SolverPolicy (expert=True) needs a text interface with solve()"],
    ),
    "wrong text option": (opening(TEXT, max_actions_per_turn="x"), UsageError, ["env 'text'", "max_actions_per_turn"]),
    "no such rank": (opening(COUNTER, worker=7), UsageError, ["env 'counter'", "worker=7"]),
    "negative rank": (opening(COUNTER, worker=-1), UsageError, ["env 'counter'", "worker=-1"]),
    "negative seed": (resetting(COUNTER, seed=-1), UsageError, ["env 'counter'", "seed must be", "-1"]),
    "seed is no number": (resetting(COUNTER, seed="7"), UsageError, ["env 'counter'", "'7'"]),
    "seed is a fraction": (resetting(COUNTER, seed=1.5), UsageError, ["env 'counter'", "1.5"]),
    "seed is a bool": (resetting(COUNTER, seed=True), UsageError, ["env 'counter'", "True"]),
    "task cannot be sent": (resetting(COUNTER, task=lambda: 1), UsageError, ["env 'counter'", "cannot be sent"]),
    "action cannot be sent": (stepping(COUNTER, lambda: 1), UsageError, ["env 'counter'", "cannot be sent"]),
    "action is too deep": (stepping(COUNTER, nested(100_000)), UsageError, ["env 'counter'", "cannot be sent"]),
    "action of the wrong type": (stepping(COUNTER, "x"), EnvError, ["env 'counter'", "ValueError: invalid literal"]),
    "action outside the space": (
        stepping("gymnasium:CartPole-v1", 7),
        EnvError,
        ["gymnasium:CartPole-v1", "7", "Discrete(2)"],
    ),
    "step before reset": (asking("step", 1), UsageError, ["env 'counter' cannot step", "call reset() first"]),
    "fork before reset": (asking("fork"), UsageError, ["env 'counter' cannot fork", "call reset() first"]),
    "snapshot before reset": (asking("snapshot"), UsageError, ["env 'counter' cannot take", "call reset() first"]),
    "step after the end": (
        stepping(COUNTER.with_kwargs(limit=1), 1, 1),
        UsageError,
        ["env 'counter' cannot step", "ended", "call reset() first"],
    ),
    "step after a failure": (step_after_failure, UsageError, ["env 'counter' cannot step", "failed", "call reset()"]),
    "no such method": (asking("call", "ad"), UsageError, ["env 'counter'", "it offers no 'ad'", "did you mean 'add'"]),
    "method is a number": (asking("call", 1), UsageError, ["env 'counter'", "by its name, not by 1"]),
    "method is bytes": (asking("call", b"total"), UsageError, ["env 'counter'", "by its name, not by b'total'"]),
    "method is None": (asking("call", None), UsageError, ["env 'counter'", "by its name, not by None"]),
    "forked into what is not a pool": (fork_into_nothing, UsageError, ["env 'counter' cannot fork", "'pool' is not"]),
    "record is half of one": (opening(COUNTER, record=HalfARecord()), UsageError, ["env 'counter'", "record="]),
    "private method": (asking("call", "_show"), UsageError, ["'_show' is private"]),
    "restored from nothing": (asking("restore", b"junk"), UsageError, ["env 'counter'", "not a snapshot"]),
    "restored from another": (restore_anothers, UsageError, ["env 'echo'", "'counter'"]),
    "closed: reset": (closed("reset"), ClosedError, ["env 'counter' cannot reset", "closed"]),
    "closed: step": (closed("step", 1), ClosedError, ["env 'counter' cannot step", "closed"]),
    "closed: call": (closed("call", "total"), ClosedError, ["env 'counter'", "closed"]),
    "closed: render": (closed("render"), ClosedError, ["env 'counter' cannot render", "closed"]),
    "closed: fork": (closed("fork"), ClosedError, ["env 'counter' cannot fork", "closed"]),
    "never opened": (step_unopened, UsageError, ["env 'counter'", "async with pool.open(...)"]),
    "opened twice": (open_twice, UsageError, ["env 'counter'"]),
    "no render": (render_nothing, UsageError, ["env 'echo' has no render()"]),
}
for _how, _words in {
    "reset gives one": ["reset() must return (observation, info)"],
    "reset gives three": ["reset() must return (observation, info)"],
    "reset info is a list": ["info must be a dict, not list"],
    "reset gives what cannot be sent": ["lock", "cannot be sent"],
    "step gives four": ["step() must return (observation, reward, terminated, truncated, info)"],
    "step info is a list": ["info must be a dict, not list"],
    "reward is text": ["reward", "'much'"],
    "reward is None": ["reward", "None"],
    "step gives what cannot be sent": ["lock", "cannot be sent"],
    "step info cannot be sent": ["lock", "cannot be sent"],
}.items():
    WRONG_USES[_how] = (stepping(MISSHAPEN, 1, how=_how), EnvError, ["env 'misshapen' (seed 1, turn 0", *_words])


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"workers": 1}], ids=str)
async def test_wrong_uses_are_reported_and_hurt_nobody_else(options: dict[str, Any]) -> None:
    problems: dict[str, Any] = {}
    async with EnvPool(**options) as pool, pool.open(COUNTER.with_kwargs(limit=10**6)) as neighbour:
        wanted = expected(COUNTER.with_kwargs(limit=10**6), 1, range(len(WRONG_USES)))
        await neighbour.reset(seed=1)
        for number, (label, (use, kind, words)) in enumerate(WRONG_USES.items()):
            try:
                with anyio.fail_after(PATIENCE):
                    await use(pool)
                problems[label] = "nothing was raised"
            except kind as error:
                missing = [word for word in words if word not in str(error)]
                if missing:
                    problems[label] = missing, str(error)
            except Exception as error:
                problems[label] = error
            assert same(await neighbour.step(number), wanted[number + 1]), label
        stats = pool.stats()
        assert [worker.envs for worker in stats.workers] == [1]
        assert stats.restarts == 0
    assert problems == {}


async def test_what_cannot_be_pickled_runs_inline_alone() -> None:
    lock = threading.Lock()

    def make() -> tiny_envs.Counter:
        with lock:
            return tiny_envs.Counter()

    local = EnvSpec(name="local", factory=make)
    async with EnvPool(backend="inline") as pool, pool.open(local) as env:
        assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))
    async with EnvPool(workers=1) as pool:
        for spec, culprit in ((local, "spec.factory.lock"), (COUNTER.with_kwargs(limit=[lock]), "limit'][0]")):
            with pytest.raises(
                UsageError, match=f"env '{spec.name}' cannot be sent to.*runs='light'.*'inline'"
            ) as raised:
                pool.open(spec)
            assert f"{culprit} is a lock: " in str(raised.value)
        async with pool.open(replace(local, runs="light")) as env:
            assert same(await play(env, 1, ACTIONS), expected(COUNTER, 1, ACTIONS))


async def test_env_that_failed_plays_again_after_a_reset(options: dict[str, Any]) -> None:
    """It is made anew, as nobody knows what a failure has left behind."""
    sticky = EnvSpec(name="counter", factory=f"{ENVS}:Sticky")
    async with EnvPool(**options) as pool, pool.open(sticky) as env:
        await env.call("set_bonus", 2.0)
        for _ in range(2):
            await env.reset(seed=1)
            with pytest.raises(EnvError, match="invalid literal") as caught:
                await env.step("x")
            assert "tiny.py" in str(caught.value.remote_traceback)
            assert (caught.value.env, caught.value.seed, caught.value.turn) == ("counter", 1, 0)
        rewards = [outcome.reward for outcome in (await play(env, 1, [1, 2]))[1:]]
        assert rewards == [outcome.reward + 2 for outcome in expected(COUNTER, 1, [1, 2])[1:]]


async def test_misnamed_call_leaves_snapshots_usable(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env:
        await env.reset(seed=1)
        with pytest.raises(UsageError, match="by its name"):
            await env.call(1)  # type: ignore[arg-type]
        assert same(await env.restore(await env.snapshot()), expected(COUNTER, 1, [])[-1])


async def test_env_is_used_in_the_loop_of_its_pool_alone(options: dict[str, Any]) -> None:
    async with EnvPool(**options) as pool, pool.open(COUNTER) as env:
        await env.reset(seed=1)
        kept = await env.snapshot()
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: env.step(1),
            lambda: env.reset(seed=2),
            lambda: env.call("total"),
            lambda: env.restore(kept),
            lambda: pool.open(COUNTER).__aenter__(),
            env.render,
            env.snapshot,
            env.fork,
            env.close,
        ]
        for use in uses:
            with pytest.raises(UsageError, match="another event loop"):
                await anyio.to_thread.run_sync(anyio.run, use)
        assert same(await env.step(1), expected(COUNTER, 1, [1])[-1])
        assert pool.stats().envs == 1


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("gymnasium:CartPol-v1", "no env is called 'gymnasium:CartPol-v1'.*CartPole"),
        ("no_such_module:Env", "no env is called 'no_such_module:Env'.*No module named"),
        ("sokobann", "did you mean 'sokoban'"),
    ],
)
async def test_expert_of_an_env_that_does_not_exist(name: str, raised: str) -> None:
    async with EnvPool(backend="inline") as pool:
        with pytest.raises(UnknownEnvError, match=raised):
            pool.open(name, expert=True)
        with pytest.raises(UsageError, match=r"SolverPolicy \(expert=True\) needs a text interface with solve\(\)"):
            pool.open("gymnasium:CartPole-v1", expert=True)


async def test_reward_that_is_not_finite_names_its_place(options: dict[str, Any]) -> None:
    spec = EnvSpec(name="walk", factory="tests.envs.rollout:Walk")
    async with EnvPool(**options) as pool, pool.open(spec) as env:
        await env.reset(seed=7, task="nan")
        with pytest.raises(
            EnvError, match=r"env 'walk' \(seed 7, turn 0, worker -?\d\).*finite number, not nan"
        ) as caught:
            await env.step(1)
        assert (caught.value.env, caught.value.seed, caught.value.turn) == ("walk", 7, 0)
