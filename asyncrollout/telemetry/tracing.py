"""OpenTelemetry spans of episodes, policy calls and env calls; free where no SDK records them.

Only the API is used: set up an SDK, and an exporter, to get spans.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asyncrollout.protocols import Playable, Player
from asyncrollout.redaction import hide, known_secrets
from asyncrollout.trajectories import Move, Trajectory
from asyncrollout.types import Outcome

try:
    from opentelemetry import trace
except ImportError:  # it is optional
    _tracer: Any = None
else:
    _tracer = trace.get_tracer("asyncrollout")

_LARGEST = 2**63  # span attributes have 64 bits
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 1_000, 10_000


def begin_episode(uid: str, env: str, seed: int, member: int) -> "EpisodeSpan | None":
    """A span, if an SDK records it."""
    if _tracer is None:
        return None
    where = {"asyncrollout.uid": uid, "asyncrollout.env": env, "asyncrollout.member": member}
    where["asyncrollout.seed"] = seed if -_LARGEST <= seed < _LARGEST else str(seed)
    span = _tracer.start_span("episode", attributes=where)
    return EpisodeSpan(span, where) if span.get_span_context().is_valid else None


class EpisodeSpan:
    """The span of an episode, which runs within `current`; calls of env and player are child spans."""

    def __init__(self, span: Any, where: dict[str, Any]) -> None:
        self._span = span
        self._where = where
        self.current = _ended_with(span)
        self._turn = 0

    def env(self, env: Playable) -> Playable:
        return _TracedEnv(env, self)

    def player(self, player: Player) -> Player:
        return _TracedPlayer(player, self)

    def ended(self, trajectory: Trajectory) -> Trajectory:
        """Record how it ended."""
        self._span.set_attributes(
            {
                "asyncrollout.turns": len(trajectory.turns),
                "asyncrollout.tokens": trajectory.sampled_tokens,
                "asyncrollout.reward": trajectory.reward,
                "asyncrollout.stop_reason": str(trajectory.stop_reason),
            }
        )
        if trajectory.error is not None:
            _record_error(self._span, trajectory.error)
        return trajectory

    @contextmanager
    def part(self, name: str) -> Iterator[Any]:
        """A call in the current turn of the episode."""
        span = _tracer.start_span(name, attributes={**self._where, "asyncrollout.turn": self._turn})
        with _ended_with(span):
            yield span

    def next_turn(self) -> None:
        self._turn += 1


class _TracedEnv:
    def __init__(self, inner: Playable, episode: EpisodeSpan) -> None:
        self.name = inner.name
        self._inner = inner
        self._episode = episode

    @property
    def worked(self) -> float | None:
        return self._inner.worked

    async def reset(self, *, seed: int, task: Any, member: int) -> Outcome:
        with self._episode.part("env.reset"):
            return await self._inner.reset(seed=seed, task=task, member=member)

    async def step(self, action: Any) -> Outcome:
        with self._episode.part("env.step") as span:
            outcome = await self._inner.step(action)
            span.set_attribute("asyncrollout.reward", outcome.reward)
            span.set_attribute("asyncrollout.done", outcome.done)
        self._episode.next_turn()
        return outcome


class _TracedPlayer:
    def __init__(self, inner: Player, episode: EpisodeSpan) -> None:
        self._inner = inner
        self._episode = episode

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._inner.messages

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        with self._episode.part("llm") as span:
            move = await self._inner.act(outcome, tokens_left=tokens_left)
            if isinstance(move, Move):  # else the caller reports it
                generation = move.generation
                ids, usage = generation.token_ids, generation.usage
                span.set_attributes(
                    {
                        "gen_ai.usage.input_tokens": usage.prompt,
                        "gen_ai.usage.output_tokens": usage.completion if ids is None else len(ids),
                        "gen_ai.response.finish_reasons": [generation.finish_reason],
                        "asyncrollout.version": generation.version,
                        "asyncrollout.attempts": generation.timings.attempts,
                        "asyncrollout.queue_seconds": generation.timings.queue,
                    }
                )
        return move


@contextmanager
def _ended_with(span: Any) -> Iterator[None]:
    """The span is current, and ends with the block; exceptions are recorded on it, and propagate."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            _record_error(span, error)
            raise
        except BaseException:
            span.set_attribute("asyncrollout.cancelled", True)
            raise


def _record_error(span: Any, error: Exception) -> None:
    secrets = known_secrets()
    message = hide(str(error), secrets)[:_LONGEST_MESSAGE]
    attributes = {
        "exception.type": type(error).__qualname__,
        "exception.message": message,
        "exception.stacktrace": hide("".join(traceback.format_exception(error)), secrets)[-_LONGEST_TRACEBACK:],
    }
    span.add_event("exception", attributes)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR, message))
