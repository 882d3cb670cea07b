"""One env where it lives, without a pool around it: replies, failures, replays and snapshots."""

import random
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvDiverged, EnvError, EnvSpec, Observation, RolloutError, TextOptions, UsageError
from asyncrollout.pool.wire.digest import digest, outcome_digest
from asyncrollout.pool.wire.failure import clip, failure
from asyncrollout.pool.wire.messages import OpenRequest
from asyncrollout.pool.wire.replay_log import Life, RecordedCall, ReplayedEpisode, ReplayLog
from asyncrollout.pool.worker.env_runner import EnvRunner, run_now
from asyncrollout.pool.worker.replay import replay
from tests.envs.tiny import Counter, CounterText, Nondeterministic, OddError, SnapshotCounter

SPEC = EnvSpec(name="counter", factory=Counter, text=CounterText)


def hosted(spec: EnvSpec = SPEC, *, text: bool = True, expert: bool = False, **options: Any) -> EnvRunner:
    return EnvRunner(OpenRequest(spec, text, expert, TextOptions(**options)))


def started(**options: Any) -> EnvRunner:
    env = hosted(**options)
    run_now(env.reset(7, None))
    return env


def snapshot_of(env: EnvRunner) -> bytes:
    state = run_now(env.snapshot())
    assert state is not None
    return state


def past(done: list[Any], digests: list[int | None], *setup: RecordedCall) -> ReplayLog:
    return ReplayLog([*setup], ReplayedEpisode(seed=7, done=done, digests=digests))


def direct(*actions: int) -> list[int]:
    """The totals of a plain counter."""
    env = Counter()
    env.reset(seed=7)
    return [env.step(action)[4]["gained"] for action in actions]


@pytest.mark.parametrize("size", [64, 128, 144, 256, 336, 512])
def test_any_one_value_of_a_picture_that_changes_is_found(size: int) -> None:
    picture = np.random.default_rng(size).integers(0, 256, (size, size, 3), dtype=np.uint8)
    before = digest(picture)
    for place in np.random.default_rng(0).integers(0, picture.size, 60).tolist():
        picture.flat[place] ^= 1
        assert digest(picture) != before
        picture.flat[place] ^= 1
    assert digest(picture) == before == digest(np.asfortranarray(picture))
    assert digest(np.roll(picture, 8, axis=0)) != before
    assert digest(np.roll(picture, 1, axis=1)) != before


@pytest.mark.parametrize("kind", ["f8", "f4", "i2", "c16", "M8[s]", "U3", "?", "S5"])
def test_any_one_value_of_an_array_that_changes_is_found(kind: str) -> None:
    for size in (1, 7, 1021, 2042, 5_000):
        array = np.zeros(size, dtype=kind)
        before = digest(array)
        for place in {0, size // 2, size - 1}:
            changed = array.copy()
            changed[place] = 1
            assert digest(changed) != before


def test_texts_and_numbers_of_a_class_of_their_own_are_seen() -> None:
    class Word(str):  # noqa: SLOT000 (one with attributes of its own)
        pass

    class Number(int):
        pass

    assert digest([Word("a"), Number(1)]) == digest([Word("a"), Number(1)])
    assert len({digest([Word("a"), Number(1)]), digest([Word("b"), Number(1)]), digest([Word("a"), Number(2)])}) == 3


def test_reset_describes_and_gives_the_prompt() -> None:
    observation, reward, terminated, truncated, info = run_now(hosted().reset(7, None))
    assert isinstance(observation, Observation)
    assert observation.text == "You are at total 0............."
    assert observation.anchor == ("total", 0)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"seed": 7, "system_prompt": "Add numbers."}


def test_task_arrives_as_an_option() -> None:
    observation, *_ = run_now(hosted(text=False).reset(7, 40))
    assert observation == "total 40............"


def test_reply_is_parsed_and_stepped() -> None:
    observation, reward, _, _, info = run_now(started().step("add 2"))
    assert reward == sum(direct(2))
    assert info == {"gained": reward, "actions": [2], "action_is_valid": True, "action_is_effective": True}
    assert observation.anchor == ("total", reward)


def test_several_actions_are_stepped_and_summed() -> None:
    observation, reward, *_ = run_now(started().step("add 1 || add 2 || add 3"))
    assert reward == sum(direct(1, 2, 3))
    assert observation.anchor == ("total", reward)


def test_actions_beyond_the_turns_limit_are_left_out() -> None:
    _, reward, *_ = run_now(started(max_actions_per_turn=2).step("add 1 || add 2 || add 3"))
    assert reward == sum(direct(1, 2))


def test_actions_stop_where_the_episode_ends() -> None:
    spec = SPEC.with_kwargs(limit=direct(1, 1)[0] + 1)
    _, reward, terminated, truncated, _ = run_now(started(spec=spec).step("add 1 || add 1 || add 1"))
    assert reward == sum(direct(1, 1))
    assert (terminated, truncated) == (True, False)


def test_invalid_reply_steps_nothing_and_costs_the_penalty() -> None:
    env = started(format_penalty=0.25)
    before = run_now(env.step("add 1"))
    observation, reward, terminated, truncated, info = run_now(env.step("jump"))
    assert observation.text == before[0].text
    assert (reward, terminated, truncated) == (-0.25, False, False)
    assert info == {
        "invalid_reason": "not an addition: 'jump'",
        "actions": [],
        "action_is_valid": False,
        "action_is_effective": False,
        "success": False,
    }
    assert run_now(env.step("add 1"))[1] == direct(1, 1)[1]


@pytest.mark.parametrize("penalty", [0.5, -0.5])
def test_penalty_is_a_cost_whatever_its_sign(penalty: float) -> None:
    assert run_now(started(format_penalty=penalty).step("jump"))[1] == -0.5


def test_action_that_is_no_text_goes_to_the_raw_env() -> None:
    _, reward, _, _, info = run_now(started().step(3))
    assert reward == sum(direct(3))
    assert info["action_is_valid"]


def test_trajectory_limit_truncates() -> None:
    env = started(max_actions_per_traj=3)
    assert run_now(env.step("add 1 || add 1"))[3] is False
    _, reward, terminated, truncated, _ = run_now(env.step("add 1 || add 1"))
    assert reward == direct(1, 1, 1)[2]
    assert (terminated, truncated) == (False, True)
    run_now(env.reset(7, None))
    assert run_now(env.step("add 1 || add 1"))[3] is False


def test_end_by_itself_is_no_truncation() -> None:
    _, _, terminated, truncated, _ = run_now(
        started(spec=SPEC.with_kwargs(limit=1), max_actions_per_traj=1).step("add 1")
    )
    assert (terminated, truncated) == (True, False)


def test_what_was_played_of_a_reply_is_reported() -> None:
    env = started(max_actions_per_traj=3)
    assert run_now(env.step("add 1 || add 2"))[4]["actions"] == [1, 2]
    assert run_now(env.step("add 3 || add 4"))[4]["actions"] == [3]


def test_reply_is_effective_if_one_of_its_actions_is() -> None:
    class Picky(Counter):
        def step(self, action: Any) -> Any:
            *outcome, info = super().step(action)
            return *outcome, {**info, "action_is_effective": action == 2}

    env = started(spec=EnvSpec(name="x", factory=Picky, text=CounterText))
    assert run_now(env.step("add 2 || add 1"))[4]["action_is_effective"] is True
    assert run_now(env.step("add 1 || add 1"))[4]["action_is_effective"] is False


def test_invalid_reply_does_not_count_as_an_action() -> None:
    env = started(max_actions_per_traj=1)
    assert run_now(env.step("jump"))[3] is False


def test_expert_travels_in_the_info() -> None:
    env = hosted(expert=True)
    assert run_now(env.reset(7, None))[4]["expert"] == "add 9"
    assert run_now(env.step("add 1"))[4]["expert"] == "add 9"


def test_separator_reaches_the_interface() -> None:
    assert run_now(started(separator=";").step("add 1; add 2"))[1] == sum(direct(1, 2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec(name="x", factory=dict), "dict has no reset() method"),
        (EnvSpec(name="x", factory="tests.envs.tiny:AsyncCounter"), "register its class with runs='io'"),
    ],
)
def test_what_is_no_env_is_reported_when_made(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosted(spec)
    assert message in str(caught.value)


class Spaced(Counter):
    """Has an action space, and fails for what is not in it."""

    class Space:
        def contains(self, action: Any) -> bool:
            return bool(action < 3)

        def __repr__(self) -> str:
            return "Below(3)"

    action_space = Space()


@pytest.mark.parametrize("action", ["x", b"x", None, [9]])
def test_bad_action_is_reported_with_the_space(action: Any) -> None:
    env = hosted(EnvSpec(name="x", factory=Spaced), text=False)
    run_now(env.reset(1, None))
    with pytest.raises((ValueError, TypeError)) as caught:
        run_now(env.step(action))
    assert f"The action {action!r} is not in the env's action space, Below(3)." in failure(caught.value).text


def test_call_reaches_interface_env_and_attributes() -> None:
    env = started()
    assert run_now(env.call(RecordedCall("anchor"))) == ("total", 0)
    assert run_now(env.call(RecordedCall("add", (5,)))) == 5
    assert run_now(env.call(RecordedCall("set_bonus", kwargs={"bonus": 2.0}))) == 2.0
    assert run_now(env.call(RecordedCall("total"))) == 5


@pytest.mark.parametrize(
    ("method", "message"),
    [("_show", "'_show' is private"), ("__class__", "is private"), ("ad", "offers no 'ad': did you mean 'add'")],
)
def test_call_refuses(method: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_now(started().call(RecordedCall(method)))
    assert message in str(caught.value)


def test_replay_brings_a_new_env_to_the_same_state() -> None:
    env = started()
    first = run_now(hosted().reset(7, None))
    done = ["add 1", RecordedCall("add", (5,)), "jump", "add 2"]
    results = [run_now(env.call(entry) if isinstance(entry, RecordedCall) else env.step(entry)) for entry in done]
    digests = [outcome_digest(first), *(None if isinstance(seen, int) else outcome_digest(seen) for seen in results)]
    ticks: list[int] = []
    twin = hosted()
    fields = run_now(replay(twin, past(done, digests), lambda: ticks.append(1)))
    assert fields is not None
    assert outcome_digest(fields) == digests[-1]
    assert len(ticks) == 1 + len(done)
    assert outcome_digest(run_now(twin.step("add 3"))) == outcome_digest(run_now(env.step("add 3")))


def test_replay_that_differs_is_reported() -> None:
    env = hosted(EnvSpec(name="x", factory=Nondeterministic), text=False)
    reset = run_now(env.reset(7, None))
    digests: list[int | None] = [outcome_digest(reset), outcome_digest(run_now(env.step(1)))]
    random.random()
    with pytest.raises(EnvDiverged, match="another outcome after action 1"):
        run_now(replay(hosted(env.opening.spec, text=False), past([1], digests), lambda: None))


def test_replay_that_raises_is_reported() -> None:
    with pytest.raises(EnvDiverged, match="raised at action 1, where it had not"):
        run_now(replay(hosted(text=False), past(["x"], [None, None]), lambda: None))


def test_setup_is_replayed_before_the_reset() -> None:
    env = hosted(text=False)
    run_now(replay(env, past([], [None], RecordedCall("set_bonus", (100.0,))), lambda: None))
    assert run_now(env.step(1))[1] == direct(1)[0] + 100


def test_each_part_of_a_life_has_its_own_time() -> None:
    earlier = ReplayedEpisode(seed=1, done=["add 1", RecordedCall("add", (5,))], digests=[None] * 3)
    life: Life = [RecordedCall("set_bonus", (1.0,)), earlier, RecordedCall("set_bonus", (2.0,), keep=True)]
    ticks: list[int] = []
    fields = run_now(
        replay(
            hosted(),
            ReplayLog(life, ReplayedEpisode(seed=7, done=["add 1"], digests=[None] * 2)),
            lambda: ticks.append(1),
        )
    )
    assert len(ticks) == 1 + 3 + 1 + 2
    assert fields is not None
    assert fields[1] == direct(1)[0] + 2


class FakeCamera:
    """A camera that notes which episodes begin."""

    is_recording = is_behind = False

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, episode: int, turns_before: int | None = None) -> None:
        self.begun.append(episode)

    def end_turn(self) -> None: ...


def test_earlier_episodes_are_not_recorded_again() -> None:
    env = hosted()
    env.camera = camera = FakeCamera()  # type: ignore[assignment]
    earlier = ReplayedEpisode(seed=1, done=["add 1", RecordedCall("add", (5,))], digests=[None] * 3, episode=3)
    run_now(replay(env, ReplayLog([earlier], ReplayedEpisode(seed=7, digests=[None], episode=4)), lambda: None))
    assert camera.begun == [4]


def test_snapshot_keeps_the_count_of_actions() -> None:
    spec = EnvSpec(name="x", factory=SnapshotCounter, text=CounterText)
    env = started(spec=spec, max_actions_per_traj=3)
    run_now(env.step("add 1 || add 1"))
    state = snapshot_of(env)
    last = run_now(env.step("add 1"))
    twin = hosted(spec, max_actions_per_traj=3)
    run_now(twin.restore(state))
    again = run_now(twin.step("add 1"))
    assert again[3] is True
    assert outcome_digest(again) == outcome_digest(last)


def test_snapshot_keeps_the_history_of_actions() -> None:
    spec = EnvSpec(name="x", factory=SnapshotCounter, text=CounterText)
    env = started(spec=spec, action_history=2)
    run_now(env.step("add 1 || add 2 || add 3"))
    twin = hosted(spec, action_history=2)
    run_now(twin.restore(snapshot_of(env)))
    observation, *_ = run_now(twin.step("add 4"))
    assert observation.text.endswith("\nYour last actions: 3, 4")
    assert run_now(env.step("add 4"))[0].text == observation.text
    run_now(env.reset(7, None))
    assert "Your last actions" not in run_now(env.step("jump"))[0].text


class SetCounter(SnapshotCounter):
    """Shows a set, which has no exact form on the wire."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        text, info = super().reset(seed=seed, options=options)
        return {text}, info

    def step(self, action: Any) -> Any:
        text, *rest = super().step(action)
        return {text}, *rest


def test_snapshot_of_an_env_with_odd_observations() -> None:
    spec = EnvSpec(name="x", factory=SetCounter, text=CounterText)
    env = started(spec=spec)
    run_now(env.step("add 1"))
    twin = hosted(spec)
    run_now(twin.restore(snapshot_of(env)))
    assert outcome_digest(run_now(twin.step("jump"))) == outcome_digest(run_now(env.step("jump")))


class Subclassed(MemoryError):
    """As numpy's own."""


@pytest.mark.parametrize(
    ("error", "raises", "text"),
    [
        (ValueError("bad"), "EnvError", "bad"),
        (MemoryError(), "EnvResourceError", ""),
        (Subclassed("no room"), "EnvResourceError", "no room"),
        (SystemExit("bye"), "EnvError", "bye"),
        (UsageError("wrong"), "UsageError", "wrong"),
        (OddError("first", "second"), "EnvError", "<its text cannot be made: RuntimeError>"),
        (ValueError("\ud800"), "EnvError", "?"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_failure_tells_any_exception(error: BaseException, raises: str, text: str) -> None:
    message = failure(error)
    assert (message.raises, message.text) == (raises, text)
    assert message.kind == type(error).__name__


def test_failure_keeps_notes_and_traceback() -> None:
    try:
        Counter().step(1)
    except AttributeError as error:
        error.add_note("reset it first")
        message = failure(error)
    assert "reset it first" in message.text
    assert "tiny.py" in message.trace


def test_numpys_memory_error_is_a_matter_of_resources() -> None:
    with pytest.raises(MemoryError) as caught:
        np.zeros(1 << 50)
    assert failure(caught.value).raises == "EnvResourceError"


def test_huge_texts_are_clipped_in_the_middle() -> None:
    text = "a" * 5_000_000 + "end"
    clipped = clip(text, 100)
    assert len(clipped) < 200
    assert clipped.startswith("aaa")
    assert clipped.endswith("end")
    assert len(failure(ValueError(text)).text) < 3_000


class MazeError(RolloutError):
    """An author's own error in our tree."""


def test_error_of_an_author_in_our_tree_keeps_its_name() -> None:
    assert failure(MazeError("x")).kind == "MazeError"


def test_coroutine_that_waits_is_refused_outside_the_loop() -> None:
    class Later:
        def __await__(self) -> Any:
            yield

    async def wait() -> None:
        await Later()

    with pytest.raises(EnvError, match="is a coroutine"):
        run_now(wait())


class Unseeded:
    def reset(self) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, float(action), False, False, {}


class SeedAlone(Unseeded):
    def reset(self, seed: int | None = None) -> Any:
        return seed, {}


class Keywords(Unseeded):
    def reset(self, **kwargs: Any) -> Any:
        return kwargs, {}


def test_env_whose_reset_takes_no_seed_is_refused_when_it_is_opened() -> None:
    with pytest.raises(
        UsageError, match=r"reset\(\) of Unseeded takes no seed: .*`def reset\(self, \*, seed=None, options="
    ):
        hosted(EnvSpec(name="unseeded", factory=Unseeded), text=False)


def test_env_whose_reset_takes_no_options_plays_without_tasks() -> None:
    env = hosted(EnvSpec(name="seeded", factory=SeedAlone), text=False)
    assert run_now(env.reset(7, None))[0] == 7
    with pytest.raises(UsageError, match="a task comes as options="):
        run_now(env.reset(7, "a task"))


def test_reset_may_take_any_keywords() -> None:
    env = hosted(EnvSpec(name="keywords", factory=Keywords), text=False)
    assert run_now(env.reset(7, "a task"))[0] == {"seed": 7, "options": {"task": "a task"}}


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
def test_reward_that_is_not_finite_is_an_error(reward: str) -> None:
    env = hosted(EnvSpec(name="seeded", factory=SeedAlone), text=False)
    run_now(env.reset(7, None))
    with pytest.raises(EnvError, match=f"the reward must be a finite number, not {reward}"):
        env.step_now(reward)
    with pytest.raises(EnvError, match=f"the reward must be a finite number, not {reward}"):
        run_now(env.step(reward))
