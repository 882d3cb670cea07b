"""Spans of episodes, as a real OpenTelemetry SDK gets them."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from asyncrollout import (
    ChatAgent,
    EnvPool,
    Generation,
    Limits,
    ProviderError,
    Request,
    Rollouts,
    UsageError,
    run_rollout,
)
from asyncrollout.seeding import sampling_seed
from asyncrollout.telemetry import tracing
from asyncrollout.types import Usage
from tests.envs.rollout import WALK
from tests.waiting import all_tasks_blocked

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install opentelemetry-sdk")
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

SECRET = "sk-canary0123456789abcdef"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What has been recorded, by a provider that no other test has."""
    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("asyncrollout"))
    yield exporter
    provider.shutdown()


class Model:
    """Takes turns with others in an order that mixes them, and notes the span in which it was asked."""

    def __init__(self) -> None:
        self.asked_in: dict[tuple[str, int], int] = {}

    async def generate(self, request: Request) -> Generation:
        for _ in range(1 + sampling_seed(0, request.session, request.turn) % 9):
            await anyio.lowlevel.checkpoint()
        self.asked_in[request.session, request.turn] = trace.get_current_span().get_span_context().span_id
        return Generation("go 1", usage=Usage(prompt=7, completion=3))


def attribute(span: Any, name: str) -> Any:
    return span.attributes[f"asyncrollout.{name}"]


async def test_concurrent_episodes_have_their_own_calls_and_steps_below_them(exporter: Any) -> None:
    model = Model()
    async with Rollouts(WALK, policy=model, group_size=4, seed=1) as rollouts:
        batch = await rollouts.collect(8)
    spans = exporter.get_finished_spans()
    episodes = {attribute(span, "uid"): span for span in spans if span.name == "episode"}
    assert all(span.parent is None for span in episodes.values())
    for trajectory in (one for group in batch.groups for one in group.trajectories):
        episode = episodes[trajectory.uid]
        reported = [attribute(episode, name) for name in ("env", "seed", "member", "turns", "reward", "stop_reason")]
        assert reported == ["walk", trajectory.seed, trajectory.member, len(trajectory.turns), trajectory.reward,
                        trajectory.stop_reason]  # fmt: skip
        assert attribute(episode, "tokens") == 3 * len(trajectory.turns)
        below = [span for span in spans if span.parent and span.parent.span_id == episode.context.span_id]
        below.sort(key=lambda span: span.start_time)
        assert [span.name for span in below] == ["env.reset", *["llm", "env.step"] * len(trajectory.turns)]
        assert {attribute(span, "uid") for span in below} == {trajectory.uid}
        assert [attribute(span, "turn") for span in below] == [
            0,
            *(n for n in range(len(trajectory.turns)) for _ in "ab"),
        ]
        assert {span.context.trace_id for span in below} == {episode.context.trace_id}
        calls, steps = below[1::2], below[2::2]
        assert [attribute(span, "reward") for span in steps] == [turn.reward for turn in trajectory.turns]
        assert attribute(steps[-1], "done") is True
        assert {(span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"])
                for span in calls} == {(7, 3)}  # fmt: skip
        assert [span.context.span_id for span in calls] == [
            model.asked_in[trajectory.uid, turn] for turn in range(len(trajectory.turns))
        ]
        assert all(span.status.is_ok for span in (episode, *below))


async def test_an_episode_belongs_to_the_span_around_it(exporter: Any) -> None:
    with tracing._tracer.start_as_current_span("training") as training:
        async with Rollouts(WALK, policy=Model(), group_size=2) as rollouts:
            await rollouts.collect(1)
    episodes = [span for span in exporter.get_finished_spans() if span.name == "episode"]
    assert {span.parent.span_id for span in episodes} == {training.get_span_context().span_id}


async def play_one(policy: Any, seconds: float | None = None) -> None:
    async with EnvPool(backend="inline") as pool, pool.open(WALK) as env:
        await run_rollout(env, ChatAgent(policy), seed=0, limits=Limits(seconds=seconds))


class Failing:
    async def generate(self, request: Request) -> Generation:
        raise ProviderError(f"401 for Bearer {SECRET}")


async def test_a_failure_is_reported_without_secrets(exporter: Any) -> None:
    await play_one(Failing())
    spans = exporter.get_finished_spans()
    failed = [span for span in spans if span.name in ("episode", "llm")]
    assert len(failed) == 2
    for span in failed:
        assert span.attributes["error.type"] == "ProviderError"
        assert (span.status.is_ok, span.status.description) == (False, "401 for Bearer [hidden]")
        assert [event.name for event in span.events] == ["exception"]
    (event,) = next(span for span in failed if span.name == "llm").events
    assert "in generate" in event.attributes["exception.stacktrace"]
    assert {attribute(span, "stop_reason") for span in failed if span.name == "episode"} == {"policy_error"}
    assert SECRET not in "".join(span.to_json() for span in spans)


class Stuck:
    async def generate(self, request: Request) -> Generation:
        await anyio.sleep_forever()
        raise AssertionError


async def test_what_is_cancelled_has_an_end(exporter: Any) -> None:
    async with Rollouts(WALK, policy=Stuck(), group_size=1) as rollouts:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rollouts.collect, 1)
                await all_tasks_blocked()
                scope.cancel()
    spans = exporter.get_finished_spans()
    cancelled = [span for span in spans if span.name in ("episode", "llm")]
    assert {span.name for span in cancelled} == {"episode", "llm"}
    assert all(attribute(span, "cancelled") and not span.events for span in cancelled)


async def test_a_limit_of_time_is_an_error_of_the_episode(exporter: Any) -> None:
    await play_one(Stuck(), seconds=0.01)
    _, call, episode = exporter.get_finished_spans()
    assert attribute(call, "cancelled") is True
    assert (episode.attributes["error.type"], attribute(episode, "stop_reason")) == ("LimitError", "seconds")


def test_without_an_sdk_or_without_the_api_there_is_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_tracer", trace.NoOpTracerProvider().get_tracer("asyncrollout"))
    assert tracing.begin_episode("g0.0", "walk", 0, 0) is None
    blocked = "import sys; sys.modules['opentelemetry'] = None; from asyncrollout.telemetry import tracing; "
    asked = "assert tracing.begin_episode('g0.0', 'walk', 0, 0) is None"
    subprocess.run([sys.executable, "-c", blocked + asked], check=True)


async def test_a_seed_beyond_64_bits_is_reported_as_text(exporter: Any) -> None:
    span = tracing.begin_episode("g0.0", "walk", 2**64, 0)
    assert span is not None
    with pytest.raises(UsageError), span.current:
        raise UsageError("seeds are too large")
    (reported,) = exporter.get_finished_spans()
    assert attribute(reported, "seed") == str(2**64)
