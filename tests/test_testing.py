"""`check_env` finds what is wrong with an env, says all of it at once, and has nothing to say against a good one."""

import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import EnvCheckError, EnvSpec, Observation, Outcome, UnknownEnvError, UsageError
from asyncrollout.testing import EnvReport, check_env, same
from asyncrollout.testing.compare import difference
from tests.envs import leaky as leaky_envs
from tests.envs.tiny import Bag, Point
from tests.naming import stable_name

ENVS = "tests.envs.tiny"
AWRY = EnvSpec(name="awry", factory=f"{ENVS}:Awry", text=f"{ENVS}:AwryText")
NO_END = "none of its episodes came to an end: give more `actions` or `max_steps`"
WHOLE_ANCHORS = "from equal anchors, the same actions lead to the same rewards, ends and anchors"
PLAIN = EnvSpec(name="plain", factory=f"{ENVS}:Counter")


async def test_good_text_env_passes_every_point() -> None:
    report = await check_env(AWRY, max_steps=12)
    assert isinstance(report, EnvReport)
    assert report.env == "awry"
    assert report.backends == ("process", "inline")
    assert report.ran_on == ("the event loop", "worker 0", "worker 1")
    assert report.episodes > 0
    assert report.steps > report.episodes
    assert len(report.checked) == 16
    assert report.skipped == {
        "an observation is in observation_space": "it has no observation_space",
        "an ended episode leaves nothing to the next one": NO_END,
        "an env leaves its keyword arguments alone": "it is opened without any",
        WHOLE_ANCHORS: "its steps draw random numbers, so that equal states may be followed by different ones",
    }
    assert report.notes == ()


@pytest.mark.parametrize("name", ["gymnasium:CartPole-v1", "gymnasium:Blackjack-v1"])
async def test_gymnasium_env_passes(name: str) -> None:
    report = await check_env(name, max_steps=10, seeds=(0, 1))
    assert "an observation is in observation_space" in report.checked
    assert "an episode continues after its worker was killed" in report.checked
    assert "render_mode='rgb_array'" in " ".join(report.skipped.values())


@pytest.mark.parametrize(
    ("factory", "runs", "where"),
    [
        ("Counter", "light", {"the event loop"}),
        ("AsyncCounter", "io", {"the event loop"}),
        ("Counter", "io", {"the event loop", "worker 0", "worker 1"}),
    ],
)
async def test_env_passes_wherever_it_runs(factory: str, runs: Any, where: set[str]) -> None:
    spec = EnvSpec(name="placed", factory=f"{ENVS}:{factory}", runs=runs)
    report = await check_env(spec, actions=[1, 2, 3, 4], seeds=(5, 6))
    assert set(report.ran_on) == where
    killed = "an episode continues after its worker was killed"
    assert (killed in report.skipped) == ("worker 0" not in where)


async def test_env_with_effects_is_not_killed() -> None:
    spec = EnvSpec(name="effects", factory=f"{ENVS}:Counter", replayable=False)
    report = await check_env(spec, actions=[1, 2, 3], backends=("process",))
    assert "not replayable" in report.skipped["an episode continues after its worker was killed"]
    assert "not replayable" in report.skipped["a fork continues like the original"]


@pytest.mark.parametrize(
    ("how", "point", "seen"),
    [
        (
            "gives infinite rewards",
            "reset() gives (observation, info)",
            "turn 0, worker -1): the reward must be a finite",
        ),
        ("keeps its generator", "a used env gives the same episode", "inline, seed 0: after step"),
        ("seeds numpy", "leave the global random state alone", "seed 0, reset changed the state of `numpy.random`"),
        ("draws from random", "leave the global random state alone", "seed 0, step 1 changed the state of `random`"),
        ("is outside its space", "an observation is in observation_space", "type str is not in Text"),
        ("forgets its generator", "restore() brings back the state of snapshot()", "after step"),
        ("renders nothing", "render() gives a picture", "render() gives None, and no picture"),
        ("closes once", "can be called twice", "RuntimeError: 'closed already'"),
        ("raises on odd digits", "parse() never raises", "for 'add \N{SUPERSCRIPT TWO}' it raised ValueError"),
        ("gives no reason", "parse() never raises", "for '' it gave no reason"),
        ("steps in parse", "an invalid reply changes nothing", "after ''"),
        ("describes nothing", "describe() and system_prompt() give text", "describe() gave None"),
        ("has no prompt", "describe() and system_prompt() give text", "system_prompt() gave None"),
        ("has a list for anchor", "anchor() is hashable", "unhashable type: 'list'"),
        ("has an object for anchor", "anchor() is hashable", "and in a second env <object"),
        ("solves badly", "solve() gives a reply that parse() takes for valid", "'subtract 9'"),
    ],
)
async def test_each_mistake_is_found(how: str, point: str, seen: str) -> None:
    with pytest.raises(EnvCheckError) as caught:
        await check_env(AWRY, backends=("inline",), seeds=(0, 1), max_steps=6, how=how)
    message = str(caught.value)
    assert message.startswith("env 'awry' breaks the contract at ")
    (reported,) = (part for part in message.split("\n- ")[1:] if point in part)
    assert "    seen: " in reported
    assert seen in reported
    assert "    do: " in reported


MACHINE = EnvSpec(name="machine", factory="tests.envs.machines:Machine", text="tests.envs.machines:MachineText")
# A hand that is raised, then grips; a third action does nothing. States 0 and 1 look the same without the hand.
GRIPPER: dict[str, Any] = {"table": [[1, 0], [2, 1], [2, 2]], "rewards": [0, 0, 0]}


async def check_machine(actions: str, **kwargs: Any) -> EnvReport:
    return await check_env(MACHINE, backends=("inline",), seeds=(0,), actions=list(actions), **kwargs)


async def test_anchor_that_leaves_out_state_is_found() -> None:
    with pytest.raises(EnvCheckError) as caught:
        await check_machine("0000", anchors=[7, 7, 8], **GRIPPER)
    message = str(caught.value)
    assert message.startswith(f"env 'machine' breaks the contract at 1 point:\n- {WHOLE_ANCHORS}.")
    assert (
        "seed 0: the anchor is the same after 0 and after 1 actions, 7, but 0 leads to reward 0 and anchor 7 from the "
        "one and to reward 0 and anchor 8 from the other"
    ) in message
    assert "put all that step() reads into anchor()" in message


async def test_anchor_that_tells_the_whole_state_is_kept() -> None:
    report = await check_machine("11001", anchors=[0, 1, 2], **GRIPPER)
    assert WHOLE_ANCHORS in report.checked


@pytest.mark.parametrize(("name", "found"), [("rewards", "reward 5 and"), ("ends", "reward 0, an end and")])
async def test_rewards_and_ends_that_an_anchor_does_not_tell_are_found(name: str, found: str) -> None:
    chain: dict[str, Any] = {"table": [[1], [2], [3], [3]], "rewards": [0, 0, 0, 0], "anchors": [0, 0, 0, 0]}
    chain[name] = {"rewards": [0, 5, 0, 0], "ends": [3]}[name]
    with pytest.raises(EnvCheckError, match=rf"(?s)1 point.*{WHOLE_ANCHORS}.*{found}"):
        await check_machine("000", **chain)


async def test_what_cannot_be_said_about_anchors_is_skipped_with_the_reason() -> None:
    report = await check_machine("000", anchors=[7, 7, 8], draws=True, **GRIPPER)
    assert "draw random numbers" in report.skipped[WHOLE_ANCHORS]
    chain = {"table": [[place + 1] for place in range(30)], "rewards": [0] * 30, "anchors": list(range(30))}
    report = await check_machine("00", **chain)
    assert report.skipped[WHOLE_ANCHORS] == "no anchor came twice in an episode"
    report = await check_env("gymnasium:CartPole-v1", text=True, backends=("inline",), seeds=(0,), max_steps=3)
    assert report.skipped[WHOLE_ANCHORS] == "its anchor is a digest of the observation"


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 4))
    states = st.integers(0, count - 1)
    return {
        "table": draw(st.lists(st.tuples(states, states), min_size=count, max_size=count)),
        "rewards": draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)),
        "anchors": draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
    }


def is_told_apart(machine: dict[str, Any], actions: str) -> bool:
    """A reference: whether two places of an episode have one anchor, and three actions show a difference."""
    table, rewards, anchors = machine["table"], machine["rewards"], machine["anchors"]
    states = [0]
    for action in actions:
        states.append(table[states[-1]][int(action)])
    for second in range(len(actions)):
        earlier = [place for place in range(second) if anchors[states[place]] == anchors[states[second]]]
        one, other = states[earlier[-1]] if earlier else states[second], states[second]
        for action in actions[second : second + 3]:
            earned = rewards[one] != rewards[other]
            one, other = table[one][int(action)], table[other][int(action)]
            if earned or anchors[one] != anchors[other]:
                return True
    return False


def can_be_told_apart(machine: dict[str, Any]) -> bool:
    """A reference: whether any two states have one anchor, and up to three actions show a difference."""
    table, rewards, anchors = machine["table"], machine["rewards"], machine["anchors"]
    alike = [pair for pair in itertools.combinations(range(len(table)), 2) if anchors[pair[0]] == anchors[pair[1]]]
    for _ in range(3):
        for one, other in alike:
            after = [(table[one][action], table[other][action]) for action in (0, 1)]
            if rewards[one] != rewards[other] or any(anchors[first] != anchors[second] for first, second in after):
                return True
        alike = [(table[one][action], table[other][action]) for one, other in alike for action in (0, 1)]
    return False


@given(machine=machines(), actions=st.text("01", min_size=1, max_size=6))
@settings(max_examples=40)
async def test_anchors_are_judged_as_by_a_reference(machine: dict[str, Any], actions: str) -> None:
    broken = ""
    try:
        await check_machine(actions, **machine)
    except EnvCheckError as error:
        broken = str(error)
    assert (f"1 point:\n- {WHOLE_ANCHORS}" in broken) == bool(broken)
    if is_told_apart(machine, actions):
        assert broken
    if broken:
        assert can_be_told_apart(machine)


async def test_what_differs_between_processes_is_found() -> None:
    with pytest.raises(EnvCheckError) as caught:
        await check_env(AWRY, seeds=(0,), how="depends on hash", text=False, actions=[1] * 6)
    message = str(caught.value)
    assert (
        "- a fresh env gives the same episode from the same seed, on every backend.\n    seen: inline, seed 0"
        in message
    )
    assert "- every worker gives the same episode from the same seed.\n    seen: worker " in message
    assert "global random state, clock, hash()" in message


async def test_every_mistake_is_reported_at_once() -> None:
    spec = EnvSpec(name="random", factory=f"{ENVS}:Nondeterministic")
    with pytest.raises(EnvCheckError) as caught:
        await check_env(spec, seeds=(0, 1), actions=[1, 2, 3, 4])
    reported = str(caught.value).split("\n- ")[1:]
    assert [part.split(".\n")[0] for part in reported] == [
        "a fresh env gives the same episode from the same seed, on every backend",
        "a used env gives the same episode from the same seed",
        "envs in one process leave each other alone",
        "every worker gives the same episode from the same seed",
        "a fork continues like the original",
        "reset() and step() leave the global random state alone",
        "an episode continues after its worker was killed",
    ]
    assert caught.value.env == "random"


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("reset gives one", "reset() must return (observation, info)"),
        ("reset info is a list", "info must be a dict, not list"),
        ("step gives four", "step() must return (observation, reward, terminated, truncated, info)"),
        ("reward is text", "much"),
    ],
)
async def test_wrong_shapes_are_reported(how: str, seen: str) -> None:
    spec = EnvSpec(name="misshapen", factory=f"{ENVS}:Misshapen")
    with pytest.raises(
        EnvCheckError, match=r"(?s)reset\(\) gives \(observation, info\).*seen: env 'misshapen'"
    ) as caught:
        await check_env(spec, actions=[1, 2], backends=("inline",), how=how)
    assert seen in str(caught.value)


async def test_env_that_cannot_be_made_is_reported_with_its_traceback() -> None:
    with pytest.raises(EnvCheckError, match="no licence for this simulator") as caught:
        await check_env(f"{ENVS}:Refuses", actions=[1], backends=("inline",))
    assert "Traceback" in caught.value.__notes__[0]


async def test_env_that_kills_its_worker_is_not_played_in_this_process() -> None:
    with pytest.raises(EnvCheckError, match="its worker died") as caught:
        await check_env(f"{ENVS}:Crasher", at=2, actions=[1] * 4, seeds=(0,))
    assert "breaks the contract at 1 point:" in str(caught.value)


async def test_actions_can_be_a_sequence_or_an_iterator() -> None:
    for actions in ([1, 2], iter([1, 2]), itertools.repeat(1)):
        report = await check_env(PLAIN, backends=("inline",), actions=actions, max_steps=4)
        assert report.steps >= 2 * 3
    with pytest.raises(UsageError, match="no action"):
        await check_env(PLAIN, backends=("inline",), actions=[])


async def test_actions_may_depend_on_the_observation() -> None:
    seen = []

    def act(observation: Any, generator: np.random.Generator) -> Any:
        seen.append(observation)
        return int(generator.integers(1, 3))

    await check_env(PLAIN, backends=("inline",), actions=act, max_steps=3)
    assert len(seen) == 9
    assert all(text.startswith("total ") for text in seen)


async def test_env_without_actions_needs_some() -> None:
    with pytest.raises(UsageError, match=r"neither a solve\(\) nor an action_space.*actions="):
        await check_env(PLAIN, backends=("inline",))


async def test_equal_seeds_are_noted() -> None:
    report = await check_env(f"{ENVS}:Echo", actions=["a", "b"], backends=("inline",), seeds=(0, 1, 2))
    assert report.notes == ("seeds 0 to 2 all gave the same episode: fine if nothing in it is random",)


async def test_callers_mistakes_are_usage_errors() -> None:
    with pytest.raises(UnknownEnvError, match="nowhere"):
        await check_env("nowhere")
    with pytest.raises(UsageError, match="at least one backend"):
        await check_env(PLAIN, backends=(), actions=[1])
    with pytest.raises(UsageError, match="backend='thread'"):
        await check_env(PLAIN, backends=("thread",), actions=[1])  # type: ignore[arg-type]


async def test_global_random_state_is_left_alone() -> None:
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    await check_env(AWRY, backends=("inline",), seeds=(0,), max_steps=3)
    assert same((random.getstate(), np.random.get_state()), before)  # noqa: NPY002


RECORD = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (float("nan"), float("nan"), True),
        ({"x": [1, (2, float("nan"))]}, {"x": [1, (2, float("nan"))]}, True),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}, True),
        ({1: "a"}, {True: "a"}, False),
        ({"x": 1}, {"x": 1, "y": 2}, False),
        ([1, 2], (1, 2), False),
        ([1], [1, 2], False),
        ({1, 2}, {2, 1}, True),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0]), np.array([1.0], dtype=np.float32), False),
        (np.zeros((2, 1)), np.zeros((1, 2)), False),
        (np.array(["a"]), np.array(["b"]), False),
        (np.array([{"a": np.zeros(1)}], dtype=object), np.array([{"a": np.zeros(1)}], dtype=object), True),
        (RECORD, RECORD.copy(), True),
        (np.array(["NaT"], dtype="M8[s]"), np.array(["NaT"], dtype="M8[s]"), True),
        (np.float32("nan"), np.float32("nan"), True),
        (np.float32(1), np.float64(1), False),
        (Point(1, "a"), Point(1, "a"), True),
        (Point(1, "a"), Point(2, "a"), False),
        (leaky_envs.Seen("a", 1), leaky_envs.Seen("a", 2), False),
        (np.ma.masked_array([1, 2], mask=[False, True]), np.ma.masked_array([1, 2], mask=[True, False]), False),
        (Bag({"a"}), Bag({"a"}), True),
        (Bag({"a"}), Bag({"b"}), False),
        (Observation("a", (np.zeros(2),)), Observation("a", (np.zeros(2),)), True),
        (Observation("a", (np.zeros(2),)), Observation("a", (np.ones(2),)), False),
    ],
    ids=stable_name,
)
def test_same(a: Any, b: Any, equal: bool) -> None:
    assert same(a, b) is equal
    assert same(b, a) is equal


def test_slotted_values_are_compared() -> None:
    @dataclasses.dataclass(slots=True, eq=False)
    class Slotted:
        x: Any

    assert same(Slotted(np.zeros(2)), Slotted(np.zeros(2)))
    assert not same(Slotted(np.zeros(2)), Slotted(np.ones(2)))


def test_difference_names_the_place() -> None:
    first, second, last = Outcome("a"), Outcome("b", 1.0), Outcome("c", 0.0, True)
    assert difference([first, second], [first, second]) is None
    assert difference([first, second], [first, Outcome("b", 2.0)]) == "after step 1 its reward was 1.0, then 2.0"
    assert difference([first], [Outcome("x")]) == "after reset its observation was 'a', then 'x'"
    assert difference([first, second, last], [first, second]) == "after step 2 the one has ended, the other has not"
    assert difference([Outcome("a", info={"t": 1})], [Outcome("a", info={"t": 2})]) is None


async def test_env_of_chance_gets_its_member_in_every_point() -> None:
    report = await check_env(f"{ENVS}:Dice", actions=[0] * 4)
    assert "reset() and step() leave the global random state alone" in report.checked
    assert str(report).startswith(f"env '{ENVS}:Dice' keeps the contract: ")
