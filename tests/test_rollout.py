"""One episode and one group: every way to end, failures as data, seeds, scores."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from asyncrollout import (
    ChatAgent,
    EnvError,
    EnvPool,
    EnvSpec,
    Failures,
    Generation,
    Group,
    LimitError,
    Limits,
    OpenAIPolicy,
    Outcome,
    PoolError,
    ProviderError,
    Request,
    ScoreError,
    ScriptedPolicy,
    SolverPolicy,
    StopReason,
    Trajectory,
    Usage,
    UsageError,
    filters,
    run_group,
    run_rollout,
)
from asyncrollout.rollouts.episode.scoring import Scorer
from asyncrollout.trajectories import Move
from tests.envs.rollout import WALK
from tests.llm_faults import Answer
from tests.llm_server import llm_server
from tests.playing import ENVS

SCRIPTED = ChatAgent(ScriptedPolicy(["go 1"]))


def scripted(*replies: str) -> ChatAgent:
    return ChatAgent(ScriptedPolicy([*replies]))


def rolling(request: Request) -> str:
    """A reply by the sampling seed, as a model would give."""
    assert request.sampling.seed is not None
    return f"go {request.sampling.seed % 5}"


ROLLING = ChatAgent(ScriptedPolicy(rolling))


async def play(agent: ChatAgent = SCRIPTED, *, task: Any = None, limits: Any = None, **kwargs: Any) -> Trajectory:
    async with EnvPool(backend="inline") as pool, pool.open(WALK, **kwargs) as env:
        return await run_rollout(env, agent, seed=7, task=task, limits=limits or Limits(), uid="it")


async def test_trajectory_has_all_that_happened() -> None:
    trajectory = await play(scripted("go 1", "run", "go 4", "go 2"))
    assert (trajectory.uid, trajectory.env, trajectory.seed) == ("it", "walk", 7)
    assert [turn.reply for turn in trajectory.turns] == ["go 1", "run", "go 4", "go 2"]
    assert [turn.reward for turn in trajectory.turns] == [1.0, -0.1, 4.0, 2.0]
    assert [turn.valid for turn in trajectory.turns] == [True, False, True, True]
    assert trajectory.turns[1].info["invalid_reason"] == "say go and a number"
    assert [turn.anchor for turn in trajectory.turns] == [7, 8, 8, 12]
    assert trajectory.reward == pytest.approx(6.9)
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.final.text == "You are at 14."
    assert trajectory.success is True
    assert trajectory.valid
    assert not trajectory.truncated


@pytest.mark.parametrize("backend", ["inline", "process"])
async def test_work_of_the_env_is_a_part_of_its_step(backend: Any) -> None:
    async with EnvPool(1, backend) as pool, pool.open(WALK) as env:
        trajectory = await run_rollout(env, scripted("go 1"), seed=7)
    for turn in trajectory.turns:
        assert turn.env_work_seconds is not None
        assert 0 < turn.env_work_seconds < turn.env_seconds


async def test_what_only_policies_may_see_is_not_recorded() -> None:
    trajectory = await play(ChatAgent(SolverPolicy()), expert=True)
    assert [turn.reply for turn in trajectory.turns] == ["go 9"] * 3
    assert all("expert" not in turn.info and "system_prompt" not in turn.info for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("agent", "limits", "kwargs", "reason", "turns"),
    [
        (SCRIPTED, Limits(), {}, StopReason.TERMINATED, 3),
        (SCRIPTED, Limits(), {"max_actions_per_traj": 2}, StopReason.TRUNCATED, 2),
        (SCRIPTED, Limits(turns=1), {}, StopReason.TURNS, 1),
        (scripted("?"), Limits(invalid=2), {}, StopReason.INVALID, 2),
        (scripted("go 1", "?"), Limits(invalid=2), {}, StopReason.TERMINATED, 5),
        (scripted("?"), Limits(), {}, StopReason.INVALID, 10),
    ],
)
async def test_outcomes(agent: ChatAgent, limits: Limits, kwargs: Any, reason: StopReason, turns: int) -> None:
    trajectory = await play(agent, limits=limits, **kwargs)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (reason, turns)
    assert trajectory.valid
    assert trajectory.error is None


async def test_tokens_are_counted_and_the_last_reply_is_cut_to_what_is_left() -> None:
    asked: list[int | None] = []

    def reply(request: Request) -> Generation:
        asked.append(request.sampling.max_tokens)
        return Generation("go 1", usage=Usage(completion=4))

    trajectory = await play(ChatAgent(ScriptedPolicy(reply)), limits=Limits(tokens=10), turns=9)
    assert asked == [10, 6, 2]
    assert trajectory.stop_reason is StopReason.TOKENS
    assert trajectory.stop_reason.blame == "limit"
    assert trajectory.sampled_tokens == 12


async def test_conversation_too_long_for_the_model_is_an_outcome() -> None:
    full = Answer(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens")
    async with llm_server(script=[None, full]) as server, OpenAIPolicy(server.url, "m") as policy:
        trajectory = await play(ChatAgent(policy))
    assert trajectory.stop_reason is StopReason.TOKENS
    assert trajectory.valid
    assert len(trajectory.turns) == 1


async def test_failure_of_the_env_is_data() -> None:
    for task in ("breaks", "no start"):
        trajectory = await play(task=task)
        assert trajectory.stop_reason is StopReason.ENV_ERROR
        assert trajectory.stop_reason.blame == "env"
        assert isinstance(trajectory.error, EnvError)
        assert "RuntimeError: it " in str(trajectory.error)
        assert (trajectory.error.env, trajectory.error.seed, trajectory.error.turn) == ("walk", 7, 0)
        assert trajectory.error.__traceback__ is None


async def test_reward_that_is_no_number_is_a_failure_of_the_env() -> None:
    trajectory = await play(task="nan")
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "nan" in str(trajectory.error)


async def test_failure_of_the_policy_is_data() -> None:
    def refuse(request: Request) -> str:
        if request.turn == 1:
            raise KeyError("no idea")
        return "go 1"

    trajectory = await play(ChatAgent(ScriptedPolicy(refuse)))
    assert trajectory.stop_reason is StopReason.POLICY_ERROR
    assert trajectory.stop_reason.blame == "policy"
    assert isinstance(trajectory.error, ProviderError)
    assert "the policy raised KeyError: 'no idea'" in str(trajectory.error)
    assert "in refuse" in "".join(trajectory.error.__notes__)
    assert (len(trajectory.turns), trajectory.reward) == (1, 1.0)


async def test_time_limit_is_a_failure_that_says_what_was_waited_for() -> None:
    class Never:
        async def generate(self, request: Request) -> Generation:
            if request.turn == 0:
                return Generation("go 1")
            await anyio.sleep_forever()
            raise AssertionError

    trajectory = await play(ChatAgent(Never()), limits=Limits(seconds=0.05))
    assert trajectory.stop_reason is StopReason.SECONDS
    assert isinstance(trajectory.error, LimitError)
    assert str(trajectory.error).startswith("not finished within 0.05 s: rollout it has waited ")
    assert "s for the policy in turn 1" in str(trajectory.error)
    assert len(trajectory.turns) == 1


async def test_mistakes_of_the_caller_and_cancellation_pass() -> None:
    with pytest.raises(UsageError, match="expert=True"):
        await play(ChatAgent(SolverPolicy()))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await play()
    assert scope.cancelled_caught


async def test_members_share_the_env_seed_and_sample_by_themselves() -> None:
    async with EnvPool(backend="inline") as pool:
        group = await run_group(pool, WALK, ROLLING, seed=7, size=6)
        again = await run_group(pool, WALK, ROLLING, seed=7, size=6)
        other = await run_group(pool, WALK, ROLLING, seed=8, size=6)
    assert [trajectory.member for trajectory in group.trajectories] == [0, 1, 2, 3, 4, 5]
    assert {trajectory.seed for trajectory in group.trajectories} == {7}
    assert len({trajectory.turns[0].observation.text for trajectory in group.trajectories}) == 1
    assert len({tuple(turn.reply for turn in trajectory.turns) for trajectory in group.trajectories}) > 3
    assert replies(group) == replies(again) != replies(other)
    assert group.verdict is None


def replies(group: Group) -> list[list[str]]:
    return [[turn.reply for turn in trajectory.turns] for trajectory in group.trajectories]


async def test_members_of_an_env_that_plays_by_chance_have_their_own_luck() -> None:
    dice = EnvSpec(name="dice", factory=f"{ENVS}:Dice")
    async with EnvPool(backend="inline") as pool, pool.open(dice) as env:
        outcomes = [await env.reset(seed=1, member=member) for member in (0, 1)]
        assert outcomes[0].observation == outcomes[1].observation
        slippery = await run_group(
            pool, "frozen_lake", scripted("<answer>Right</answer>"), seed=3, size=12, limits=Limits(turns=8)
        )
    assert len({tuple(turn.observation.text for turn in one.turns) for one in slippery.trajectories}) > 1


class Flaky:
    """Fails the first `times` calls of each session."""

    def __init__(self, times: int, sessions: set[str] | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self._times = times
        self._sessions = sessions

    async def generate(self, request: Request) -> Generation:
        self.calls[request.session] += 1
        fails = self._sessions is None or request.session in self._sessions
        if fails and self.calls[request.session] <= self._times:
            raise ProviderError("not now")
        return Generation("go 1")


async def flaky_group(policy: Flaky, failures: Failures) -> Group:
    async with EnvPool(backend="inline") as pool:
        return await run_group(pool, WALK, ChatAgent(policy), seed=7, size=3, id="g", failures=failures)


async def test_failed_members_are_played_again_within_the_budget_of_the_group() -> None:
    policy = Flaky(1, {"g.0", "g.2"})
    group = await flaky_group(policy, Failures(retries=2))
    assert group.verdict is None
    assert all(trajectory.valid for trajectory in group.trajectories)
    assert policy.calls == {"g.0": 4, "g.1": 3, "g.2": 4}


async def test_group_with_members_that_still_fail_is_dropped_or_accepted_as_chosen() -> None:
    dropped = await flaky_group(Flaky(9, {"g.1"}), Failures(retries=0))
    assert (dropped.verdict is not None, len(dropped.completed)) == (True, 2)
    assert dropped.verdict is not None
    assert (dropped.verdict.keep, dropped.verdict.reason) == (False, "failed")
    accepted = await flaky_group(Flaky(9, {"g.1"}), Failures(retries=0, min_valid=2))
    assert accepted.verdict is None
    too_few = await flaky_group(Flaky(9, {"g.1"}), Failures(retries=0, min_valid=3))
    assert too_few.verdict is not None


async def test_env_that_cannot_be_opened_fails_its_members() -> None:
    refuses = EnvSpec(name="refuses", factory=f"{ENVS}:Refuses")
    async with EnvPool(backend="inline") as pool:
        group = await run_group(pool, refuses, SCRIPTED, seed=7, size=2, failures=Failures(retries=0))
    assert [trajectory.stop_reason for trajectory in group.trajectories] == [StopReason.ENV_ERROR] * 2
    assert group.verdict is not None


async def test_errors_of_the_caller_come_plain_out_of_a_group() -> None:
    async with EnvPool(backend="inline") as pool:
        with pytest.raises(UsageError, match="expert=True"):
            await run_group(pool, WALK, ChatAgent(SolverPolicy()), seed=7, size=2)
        for size in (0, -1, True, 1.5):
            with pytest.raises(UsageError, match="size="):
                await run_group(pool, WALK, SCRIPTED, seed=7, size=size)  # type: ignore[arg-type]


async def test_slots_bound_the_rollouts_under_way() -> None:
    most = 0
    slots = anyio.CapacityLimiter(2)

    async def watch(request: Request) -> str:
        nonlocal most
        most = max(most, slots.borrowed_tokens)
        await anyio.lowlevel.checkpoint()
        return "go 1"

    async with EnvPool(backend="inline") as pool:
        await run_group(pool, WALK, ChatAgent(ScriptedPolicy(watch)), seed=7, size=8, slots=slots)
    assert most == 2
    assert slots.borrowed_tokens == 0


async def scored(score: Any, **options: Any) -> Group:
    async with EnvPool(backend="inline") as pool:
        return await run_group(
            pool, WALK, ROLLING, seed=7, size=3, id="g", scorer=Scorer(score, **options), failures=Failures(retries=0)
        )


async def test_score_of_a_trajectory_replaces_its_reward() -> None:
    async def judge(trajectory: Trajectory) -> dict[str, float]:
        await anyio.lowlevel.checkpoint()
        return {"reward": 10.0 + trajectory.member, "style": 0.5}

    group = await scored(judge)
    assert group.rewards.tolist() == [10.0, 11.0, 12.0]
    first = group.trajectories[0]
    assert first.metrics == {"env_reward": sum(turn.reward for turn in first.turns), "style": 0.5}
    for same in (lambda trajectory: None, lambda trajectory: trajectory.reward):
        assert (await scored(same)).rewards.tolist() == [one.metrics["env_reward"] for one in group.trajectories]


async def test_score_of_a_group() -> None:
    async def rank(group: Group) -> Any:
        return np.argsort(np.argsort([-trajectory.reward for trajectory in group.trajectories])).astype(float)

    def unannotated(group):  # type: ignore[no-untyped-def]
        return [1.0] * len(group.trajectories)

    assert sorted((await scored(rank)).rewards.tolist()) == [0.0, 1.0, 2.0]
    assert (await scored(unannotated)).rewards.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (float("nan"), "score returned nan for g.0"),
        ("good", "not a number"),
        ({"reward": None}, "not a number"),
        ({"style": 0.5}, "without 'reward'"),
    ],
)
async def test_score_that_is_no_number_is_a_failure(given: Any, message: str) -> None:
    group = await scored(lambda trajectory: given if trajectory.member == 0 else 1.0)
    failed, *others = group.trajectories
    assert isinstance(failed.error, ScoreError)
    assert message in str(failed.error)
    assert failed.stop_reason.blame == "score"
    assert all(trajectory.valid for trajectory in others)


@pytest.mark.parametrize("given", [[1.0], 3.0, {"g.0": 1.0, "g.1": 1.0, "g.2": 1.0}])
async def test_scores_that_do_not_fit_the_group_are_failures(given: Any) -> None:
    def rank(group: Group) -> Any:
        return given

    assert [type(trajectory.error) for trajectory in (await scored(rank)).trajectories] == [ScoreError] * 3


async def test_score_is_called_again_when_it_fails_and_then_given_up() -> None:
    calls: Counter[str] = Counter()

    def fail(trajectory: Trajectory) -> float:
        calls[trajectory.uid] += 1
        if trajectory.member == 2 or calls[trajectory.uid] == 1:
            raise ConnectionError("judge is away")
        return 1.0

    group = await scored(fail, attempts=2)
    assert calls == {"g.0": 2, "g.1": 2, "g.2": 2}
    assert [trajectory.valid for trajectory in group.trajectories] == [True, True, False]
    assert "ConnectionError: judge is away (2 times)" in str(group.trajectories[2].error)


async def test_score_that_hangs_is_given_up() -> None:
    async def hang(trajectory: Trajectory) -> float:
        await anyio.sleep_forever()
        return 0.0

    group = await scored(hang, attempts=1, seconds=0.02)
    assert all("TimeoutError" in str(trajectory.error) for trajectory in group.trajectories)


async def test_closed_pool_is_no_data() -> None:
    pool = EnvPool(backend="inline")
    async with pool:
        pass
    with pytest.raises((UsageError, PoolError)):
        await run_group(pool, WALK, SCRIPTED, seed=7, size=2)


@dataclass(frozen=True)
class Clipping:
    """Plays something else than its policy's reply says, from one array that it uses again."""

    raw: bool = False

    def open(self, session: str, seed: int) -> "Clipping":
        vars(self).update(messages=[], buffer=np.zeros((), dtype=np.int64))
        return self

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        buffer = vars(self)["buffer"]
        buffer += 1
        return Move(buffer if self.raw else f"go {buffer}", Generation("go 99", action=99 if self.raw else None))


async def test_record_has_what_the_agent_played() -> None:
    for raw, expected in ((False, ["go 1", "go 2", "go 3"]), (True, [1, 2, 3])):
        trajectory = await play(Clipping(raw))  # type: ignore[arg-type]
        assert [turn.action for turn in trajectory.turns] == expected
        assert [turn.reward for turn in trajectory.turns] == [1.0, 2.0, 3.0]
        assert {turn.reply for turn in trajectory.turns} == {"go 99"}
    assert {turn.action for turn in (await play()).turns} == {None}  # the reply itself


@pytest.mark.parametrize("backend", [{"backend": "inline"}, {"workers": 1}], ids=["inline", "process"])
async def test_equal_rewards_are_equal_however_actions_are_split(backend: Any) -> None:
    """Members of a group of Sokoban that all fail after the same ten actions."""
    actions = ["Up", "Down"] * 5

    def reply(request: Request) -> str:
        size = int(request.session.rpartition(".")[2]) + 1
        chosen = actions[request.turn * size :][:size]
        return f"<answer>{' || '.join(chosen)}</answer>"

    async with EnvPool(**backend) as pool:
        options = {"max_actions_per_turn": 10, "max_actions_per_traj": 10}
        agent = ChatAgent(ScriptedPolicy(reply))
        group = await run_group(pool, "sokoban", agent, seed=3, size=10, env_kwargs=options)
    assert [len(trajectory.turns) for trajectory in group.trajectories] == [10, 5, 4, 3, 2, 2, 2, 2, 2, 1]
    assert len({sum(turn.reward for turn in trajectory.turns) for trajectory in group.trajectories}) > 1
    assert {*group.rewards.tolist()} == {math.fsum([-0.1] * 10)}
    assert filters.reward_varies(group).reason == "constant_reward"
    assert group.trajectories[1].turns[0].info["step_rewards"] == [-0.1, -0.1]
    assert "step_rewards" not in group.trajectories[0].turns[0].info


async def test_rewards_without_a_finite_sum_are_a_failure() -> None:
    trajectory = await play(scripted(f"go {10**308}"))
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "its rewards add up to inf" in str(trajectory.error)


async def test_numbers_of_numpy_are_recorded_as_python_s() -> None:
    async with EnvPool(backend="inline") as pool:
        group = await run_group(pool, WALK, SCRIPTED, seed=np.int64(7), size=np.int8(2))  # type: ignore[arg-type]
    assert [type(member.seed) for member in group.trajectories] == [int, int]
    assert Limits(turns=np.int64(3), seconds=np.float32(2)) == Limits(turns=3, seconds=2.0)  # type: ignore[arg-type]
    assert type(Limits(turns=np.int64(3)).turns) is int  # type: ignore[arg-type]
