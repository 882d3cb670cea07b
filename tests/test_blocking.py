"""A call of the user's that blocks the event loop is named in a warning."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from asyncrollout import (
    EnvPool,
    EnvSpec,
    Generation,
    Group,
    MarkovAgent,
    Move,
    OpenAIPolicy,
    Outcome,
    Request,
    Rollouts,
    ScriptedPolicy,
    Trajectory,
    Verdict,
)
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.pool import loop_monitor
from tests.llm_server import llm_server
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

SPEC = EnvSpec(name="counter", factory="tests.envs.tiny:Counter", text="tests.envs.tiny:CounterText", runs="light")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_monitor, "_TICK", 0.02)


def block(ticks: int | None = None) -> None:
    """Until the watch has seen enough of it."""
    (watch,) = loop_monitor._watches.values()
    wanted = loop_monitor._TICKS if ticks is None else ticks
    deadline = time.monotonic() + PATIENCE
    while watch.call is None or watch.call.ticks < wanted:
        assert time.monotonic() < deadline, "nobody noticed"
        time.sleep(0.001)


class BlockingPolicy:
    async def generate(self, request: Request) -> Generation:
        block()
        return Generation(text="add 1000")


class BlockingAgent:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def open(self, session: str, seed: int) -> "BlockingAgent":
        return self

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        block()
        return Move("add 1000", Generation(text="add 1000"))


class BlockingTasks:
    def __iter__(self) -> Any:
        return iter([1, 2])

    def finished(self, group: Group) -> None:
        block()


class BlockingEnv:
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        block()
        return 0, 1.0, True, False, {}


def blocking_reply(request: Request) -> str:
    block()
    return "add 1000"


def blocking_score(trajectory: Trajectory) -> float:
    block()
    return 1.0


async def blocking_async_score(trajectory: Trajectory) -> float:
    await anyio.lowlevel.checkpoint()
    block()
    return 1.0


def blocking_filter(group: Group) -> Verdict:
    block()
    return Verdict(keep=True)


WELL: dict[str, Any] = {"policy": ScriptedPolicy(lambda _: "add 1000")}
HOOKS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "policy": ({"policy": BlockingPolicy()}, "policy", "BlockingPolicy.generate", "BatchedPolicy"),
    "reply": ({"policy": ScriptedPolicy(blocking_reply)}, "policy", "blocking_reply", "to_thread"),
    "agent": ({"agent": BlockingAgent()}, "agent", "BlockingAgent.act", "to_thread"),
    "score": ({**WELL, "score": blocking_score}, "score", "blocking_score", "async def"),
    "async score": ({**WELL, "score": blocking_async_score}, "score", "blocking_async_score", "to_thread"),
    "filter": ({**WELL, "keep": blocking_filter}, "filter", "blocking_filter", "score"),
    "finished": ({**WELL, "tasks": BlockingTasks()}, "tasks", "BlockingTasks.finished", "take notes"),
    "env": (
        {
            "env": EnvSpec(name="e", factory=f"{__name__}:BlockingEnv", runs="light"),
            "agent": MarkovAgent(ScriptedPolicy(lambda _: "add 1")),
        },
        "env",
        "BlockingEnv.step",
        'runs="cpu"',
    ),
}


@pytest.mark.parametrize("hook", HOOKS)
async def test_what_blocks_is_named_with_what_to_do(hook: str) -> None:
    options, role, name, hint = HOOKS[hook]
    with capture_logs() as logs:
        async with Rollouts(**{"env": SPEC, "group_size": 2, **options}) as rollouts:
            await rollouts.collect(groups=1)
            await _answered()
    (event,) = [event for event in logs if event["event"] == "loop_blocked"]
    assert event["role"] == role
    assert event["call"].startswith(f"{name} ({__file__}:")
    assert hint in event["hint"]
    assert event["seconds"] >= 0


async def test_push_of_weights_that_blocks_is_named() -> None:
    async def on_back(endpoint: Endpoint) -> None:
        block()

    watch = loop_monitor.watch_loop()
    try:
        with capture_logs() as logs, anyio.fail_after(PATIENCE):
            async with llm_server() as goes, OpenAIPolicy(goes.url, "m", kind="openai", on_back=on_back) as policy:
                await policy.pause()
                await policy.resume(1)
                await goes.stop()
                while policy.endpoints[0].up:
                    await all_tasks_blocked()
                async with llm_server(port=int(goes.root.rpartition(":")[2])):
                    await policy.generate(Request(messages=[{"role": "user", "content": "Hello"}]))
                    await _answered()
    finally:
        watch.release()
    (event,) = [event for event in logs if event["event"] == "loop_blocked"]
    assert event["role"] == "policy"
    assert "on_back" in event["call"]


async def _answered() -> None:
    """Until the loop has answered the watch."""
    (watch,) = loop_monitor._watches.values()
    while watch.call is not None:
        await anyio.lowlevel.checkpoint()


async def test_a_call_is_named_once_and_one_that_never_ends_is_named_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_monitor, "_LONG_TICKS", 6)
    named: list[int] = []

    def score(trajectory: Trajectory) -> float:
        block(8)
        named.append(sum(event["event"] == "loop_blocked" for event in logs))
        return 1.0

    with capture_logs() as logs:
        async with Rollouts(SPEC, group_size=3, score=score, **WELL) as rollouts:
            await rollouts.collect(groups=1)
            await _answered()
    assert named[:3] == [1, 1, 1]
    assert len(logs) == 1


async def test_what_awaits_or_runs_in_a_thread_is_not_named() -> None:
    async def score(trajectory: Trajectory) -> float:
        (watch,) = loop_monitor._watches.values()
        asked = watch._asked_at
        await anyio.to_thread.run_sync(_until, lambda: watch._asked_at > asked + 6 * loop_monitor._TICK)
        return 1.0

    with capture_logs() as logs:
        async with Rollouts(SPEC, group_size=2, score=score, **WELL) as rollouts:
            await rollouts.collect(groups=1)
    assert not [event for event in logs if event["event"] == "loop_blocked"]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def test_pools_of_a_loop_share_a_watch_that_ends_with_the_last() -> None:
    async with EnvPool(backend="inline"):
        (watch,) = loop_monitor._watches.values()
        async with EnvPool(backend="inline"):
            assert [*loop_monitor._watches.values()] == [watch]
        assert watch.is_alive()
    assert not loop_monitor._watches
    assert not watch.is_alive()


async def test_time_in_which_the_whole_process_stood_still_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch was late itself, so that it cannot tell."""
    async with EnvPool(backend="inline"):
        (watch,) = loop_monitor._watches.values()
        monkeypatch.setattr(loop_monitor, "_TICK", -1.0)  # each tick is late
        watch._is_alive = False
        watch.call = SimpleNamespace(ticks=loop_monitor._TICKS - 1)  # type: ignore[assignment]
        await anyio.to_thread.run_sync(_until, lambda: watch.call is None)
        watch._is_alive = True


def test_a_loop_that_is_closed_is_not_watched_any_longer() -> None:
    async def start() -> None:
        await EnvPool(backend="inline").start()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    watch = loop_monitor._watches[loop]
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    watch.join(PATIENCE)
    assert not watch.is_alive()
    assert loop not in loop_monitor._watches
