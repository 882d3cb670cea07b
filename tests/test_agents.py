"""Agents: what a model is shown, how tokens join up, and what numeric policies are given."""

import base64
import io
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asyncrollout import (
    Batch,
    BatchedPolicy,
    ChatAgent,
    EnvPool,
    Generation,
    Group,
    MarkovAgent,
    MemoryAgent,
    MemoryMarkovAgent,
    Observation,
    OpenAIPolicy,
    Outcome,
    ProviderError,
    RandomAgent,
    Recalled,
    Request,
    Sampling,
    ScriptedPolicy,
    Trajectory,
    UsageError,
    run_rollout,
)
from asyncrollout.agents.token_history import TokenSequence, unsampled
from asyncrollout.protocols import Agent
from asyncrollout.seeding import sampling_seed
from asyncrollout.serialization import from_plain, to_plain
from asyncrollout.trajectories import Move, Remembered, Turn
from tests.envs.rollout import WALK
from tests.llm_server import llm_server


class Asked:
    """Notes what it is asked, and answers by a script."""

    def __init__(self, *replies: str | Generation) -> None:
        self.requests: list[Request] = []
        self._replies = replies or ("go 1",)

    async def generate(self, request: Request) -> Generation:
        reply = self._replies[len(self.requests) % len(self._replies)]
        self.requests.append(request)
        return reply if isinstance(reply, Generation) else Generation(reply)


async def played(agent: Agent, *, seed: int = 7, text: bool = True, **kwargs: Any) -> Trajectory:
    async with EnvPool(backend="inline") as pool, pool.open(WALK, text=text, **kwargs) as env:
        return await run_rollout(env, agent, seed=seed)


def talk(request: Request) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.messages]


async def test_whole_conversation() -> None:
    policy = Asked("go 1", "go 2")
    trajectory = await played(ChatAgent(policy))
    assert [talk(request)[-1] for request in policy.requests] == [
        ("user", "You are at 7."),
        ("user", "You are at 8."),
        ("user", "You are at 10."),
    ]
    assert talk(policy.requests[2]) == [
        ("system", "Walk."),
        ("user", "You are at 7."),
        ("assistant", "go 1"),
        ("user", "You are at 8."),
        ("assistant", "go 2"),
        ("user", "You are at 10."),
    ]
    assert trajectory.messages == [*policy.requests[2].messages, {"role": "assistant", "content": "go 1"}]
    assert [turn.first_message for turn in trajectory.turns] == [0, 0, 0]


@pytest.mark.parametrize("history", [0, 1, 2])
async def test_bounded_history_has_the_last_turns_and_the_system_prompt(history: int) -> None:
    policy = Asked()
    trajectory = await played(ChatAgent(policy, history=history), turns=6)
    whole = [(message["role"], message["content"]) for message in trajectory.messages]
    for turn, request in enumerate(policy.requests):
        first = 1 + 2 * max(0, turn - history)
        assert talk(request) == [whole[0], *whole[first : 2 * turn + 2]]
        assert trajectory.turns[turn].first_message == (0 if turn <= history else first)


async def test_own_system_prompt_and_template() -> None:
    policy = Asked()
    await played(ChatAgent(policy, system_prompt="Go.", template=lambda turn, text, outcome: f"{turn}: {text}"))
    assert talk(policy.requests[1]) == [
        ("system", "Go."),
        ("user", "0: You are at 7."),
        ("assistant", "go 1"),
        ("user", "1: You are at 8."),
    ]


async def test_no_system_prompt() -> None:
    policy = Asked()
    await played(ChatAgent(policy, system_prompt="", history=1), turns=4)
    assert [talk(request)[0] for request in policy.requests] == [
        ("user", "You are at 7."),
        ("user", "You are at 7."),
        ("user", "You are at 8."),
        ("user", "You are at 9."),
    ]


async def test_ragen_template_tells_reward_turn_state_and_actions_left() -> None:
    policy = Asked("go 2")
    await played(ChatAgent(policy, template="ragen"), max_actions_per_traj=5)
    first, second, _ = (request.messages[-1]["content"] for request in policy.requests)
    assert first == "Turn 1:\nState:\nYou are at 7.\nYou have 5 actions left."
    assert second == "Reward:\n2\n\nTurn 2:\nState:\nYou are at 9.\nYou have 4 actions left."


async def test_states_of_the_same_text_differ_by_their_pictures() -> None:
    frames = [np.full((4, 4, 3), shade, np.uint8) for shade in (0, 0, 9)]
    player = ChatAgent(ScriptedPolicy(["go 1"])).open("s", 0)
    moves = [await player.act(Outcome(Observation("look", (frame,))), tokens_left=None) for frame in frames]
    anchors = [Turn(move.observation).anchor for move in moves]
    assert anchors[0] == anchors[1] != anchors[2]
    assert {move.observation.images for move in moves} == {()}
    own = await player.act(Outcome(Observation("look", (frames[0],), anchor="room")), tokens_left=None)
    assert Turn(own.observation).anchor == "room"
    kept = [Turn(Observation("look", (frame,))).anchor for frame in frames]  # by an agent that keeps pictures
    assert kept[0] == kept[1] != kept[2]


async def test_pictures_are_sent_once_encoded_and_not_kept_twice() -> None:
    policy = Asked()
    trajectory = await played(ChatAgent(policy), pictures=True)
    text, picture = policy.requests[2].messages[1]["content"]
    assert text == {"type": "text", "text": "You are at 7."}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert picture is policy.requests[0].messages[1]["content"][1]
    assert trajectory.turns[0].observation.images == ()
    assert trajectory.turns[0].observation.text == "You are at 7."


async def test_sampling_seeds_differ_by_turn_and_rollout_and_can_be_left_out() -> None:
    policies = Asked(), Asked(), Asked()
    await played(ChatAgent(policies[0], sampling=Sampling(temperature=0.5)))
    await played(ChatAgent(policies[1]), seed=8)
    await played(ChatAgent(policies[2], seeded=False))
    seeds = [[request.sampling.seed for request in policy.requests] for policy in policies]
    assert len({*seeds[0], *seeds[1]}) == 6
    assert seeds[2] == [None, None, None]
    assert policies[0].requests[0].sampling.temperature == 0.5


async def test_replies_that_are_interrupted_are_asked_for_again() -> None:
    stopped = Generation("go", finish_reason="abort")
    policy = Asked(stopped, stopped, "go 4")
    trajectory = await played(ChatAgent(policy), turns=1)
    assert trajectory.reward == 4.0
    failed = await played(ChatAgent(Asked(stopped)), turns=1)
    assert isinstance(failed.error, ProviderError)
    assert "aborted the reply" in str(failed.error)


async def test_raw_observations_are_refused() -> None:
    with pytest.raises(UsageError, match="text=True"):
        await played(ChatAgent(Asked()), text=False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"template": "ragan"}, "did you mean 'ragen'"), ({"history": -1}, "history=-1"), ({"history": True}, "history=")],
)
def test_wrong_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        ChatAgent(Asked(), **options)
    with pytest.raises(UsageError, match="end_ids"):
        ChatAgent(Asked(), end_ids=[1])
    for wrong in (None, 5, "<end>", [-1], [1.5], [True], [[1]], np.array([[1]]), {1}):
        with pytest.raises(UsageError, match="end_ids="):
            ChatAgent(Asked(), encode=lambda messages, is_start: [1], end_ids=cast("Any", wrong))
    with pytest.raises(UsageError, match="encode=5 is not a function"):
        ChatAgent(Asked(), encode=cast("Any", 5))
    assert ChatAgent(Asked(), encode=lambda messages, is_start: [1], end_ids=cast("Any", np.array([7, 8]))).end_ids == (
        7,
        8,
    )
    with pytest.raises(UsageError, match=r"no generate\(\)"):
        ChatAgent("gpt")  # type: ignore[arg-type]


def encode(messages: list[dict[str, Any]], is_start: bool) -> list[int]:
    """A tokenizer of bytes; a message ends with 0."""
    return [byte for message in messages for byte in (*message["content"].encode(), 0)]


class Sampler:
    """A model of bytes, whose tokens are its text's and an end."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    async def generate(self, request: Request) -> Generation:
        assert request.prompt_ids is not None
        self.prompts.append(request.prompt_ids)
        text = f"go {len(self.prompts)}"
        ids = [*text.encode(), 0]
        return Generation(text, token_ids=ids, logprobs=[-0.5] * len(ids))


async def test_token_mode_extends_the_sequence_exactly() -> None:
    policy = Sampler()
    trajectory = await played(ChatAgent(policy, encode=encode))
    assert [turn.joined for turn in trajectory.turns] == [False, True, True]
    whole: list[int] = []
    for prompt, turn in zip(policy.prompts, trajectory.turns, strict=True):
        assert turn.prompt_ids is not None
        assert turn.token_ids is not None
        whole += turn.prompt_ids.tolist()
        assert prompt == whole
        whole += turn.token_ids.tolist()
    assert bytes(whole) == b"Walk.\0You are at 7.\0go 1\0You are at 8.\0go 2\0You are at 10.\0go 3\0"


async def test_token_mode_with_a_window_begins_new_samples() -> None:
    async def slowly(messages: list[dict[str, Any]], is_start: bool) -> list[int]:
        return encode(messages, is_start)

    policy = Sampler()
    trajectory = await played(ChatAgent(policy, encode=slowly, history=1), turns=4)
    assert [turn.joined for turn in trajectory.turns] == [False, True, False, False]
    assert bytes(policy.prompts[2]) == b"Walk.\0You are at 8.\0go 2\0You are at 10.\0"


async def test_token_mode_begins_anew_after_a_reply_that_was_cut_off() -> None:
    class Cut(Sampler):
        async def generate(self, request: Request) -> Generation:
            whole = await super().generate(request)
            assert whole.token_ids is not None
            if request.turn != 0:
                return whole
            return Generation("go 1", "length", token_ids=whole.token_ids[:-1], logprobs=[-0.5] * 4)

    policy = Cut()
    trajectory = await played(ChatAgent(policy, encode=encode))
    assert bytes(policy.prompts[1]) == b"Walk.\0You are at 7.\0go 1\0You are at 8.\0"
    assert [turn.joined for turn in trajectory.turns] == [False, True, True]


class Spoken(Sampler):
    """Gives these replies in turn."""

    def __init__(self, *replies: Generation) -> None:
        super().__init__()
        self._replies = replies

    async def generate(self, request: Request) -> Generation:
        whole = await super().generate(request)
        return self._replies[request.turn] if request.turn < len(self._replies) else whole


def cut(text: str, ids: bytes, **fields: Any) -> Generation:
    return Generation(text, token_ids=[*ids], logprobs=[-0.5] * len(ids), **fields)


CUT = [cut("go 1", b"go 1</a>", stopped_early=True), cut("go 1", b"go 1", finish_reason="length"), cut("", b"")]


@pytest.mark.parametrize("reply", CUT, ids=["stop", "length", "empty"])
async def test_token_mode_after_a_reply_without_its_end(reply: Generation) -> None:
    """Nothing can follow it but its end, which was not sampled; `encode` alone begins anew."""
    policy = Spoken(reply)
    trajectory = await played(ChatAgent(policy, encode=encode))
    shown = f"Walk.\0You are at 7.\0{reply.text}\0You are at {8 if reply.text else 7}.\0".encode()
    assert bytes(policy.prompts[1]) == shown
    policy = Spoken(reply)
    trajectory = await played(ChatAgent(policy, encode=encode, end_ids=[0]))
    assert reply.token_ids is not None
    joined = [*b"Walk.\0You are at 7.\0", *reply.token_ids, 0, *shown.split(b"\0")[-2], 0]
    assert policy.prompts[1] == joined
    assert [turn.joined for turn in trajectory.turns[:3]] == [False, True, True]
    assert trajectory.turns[1].prompt_ids is not None
    assert trajectory.turns[1].prompt_ids[0] == 0
    assert trajectory.turns[2].prompt_ids is not None
    assert trajectory.turns[2].prompt_ids[0] != 0  # that reply had its end


def test_end_of_a_message_is_added_as_far_as_it_is_missing() -> None:
    assert [*unsampled([1, 2], [5])] == [1, 2]
    assert [*unsampled([1, 2], [5, 1])] == [2]
    assert [*unsampled([1, 2], [1, 2])] == []
    assert [*unsampled([], [5])] == []


async def test_token_mode_after_a_reply_without_ids_begins_anew_and_says_so_once() -> None:
    policy = Spoken(Generation("go 1"), Generation("go 2"))
    agent = ChatAgent(policy, encode=encode)
    with capture_logs() as logs:
        for _ in range(2):
            policy.prompts.clear()
            trajectory = await played(agent)
    assert bytes(policy.prompts[1]) == b"Walk.\0You are at 7.\0go 1\0You are at 8.\0"
    assert bytes(policy.prompts[2]) == b"Walk.\0You are at 7.\0go 1\0You are at 8.\0go 2\0You are at 10.\0"
    assert [turn.token_ids is None for turn in trajectory.turns] == [True, True, False]
    assert [entry["event"] for entry in logs] == ["reply_without_token_ids"]


async def test_ids_and_logprobs_that_differ_in_number_fail_the_rollout() -> None:
    trajectory = await played(ChatAgent(Asked(Generation("go 1", token_ids=[1, 2], logprobs=[-0.5]))))
    assert isinstance(trajectory.error, ProviderError)
    assert "2 token ids and 1 logprobs" in str(trajectory.error)


async def test_own_seed_is_sent() -> None:
    policy = Asked()
    await played(ChatAgent(policy, sampling=Sampling(seed=5)))
    assert [request.sampling.seed for request in policy.requests] == [5, 5, 5]


async def test_examples_in_an_agents_prompt_are_not_its_replies() -> None:
    class FewShot:
        def open(self, session: str, seed: int) -> "FewShot":
            example = [{"role": "user", "content": "at 1?"}, {"role": "assistant", "content": "example"}]
            self.messages: list[dict[str, Any]] = example
            return self

        async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
            expected = {"role": "user", "content": outcome.observation}
            self.messages = [*self.messages, expected, {"role": "assistant", "content": "go 1"}]
            return Move("go 1", Generation("go 1"))

    trajectory = await played(FewShot(), turns=2)
    assert [turn.message for turn in trajectory.turns] == [3, 5]
    arrays = Batch(0, [Group("g", [trajectory])]).to_arrays()
    assert (arrays["messages"], arrays["replies"]) == ([trajectory.messages], [[3, 5]])
    whole = await played(ChatAgent(Asked()))
    assert [turn.message for turn in whole.turns] == [2, 4, 6]


async def test_pictures_that_cannot_be_sent_are_an_error() -> None:
    async with llm_server() as server, OpenAIPolicy(server.url, "m", mode="completions") as policy:
        with pytest.raises(UsageError, match="cannot send pictures"):
            await played(ChatAgent(policy, encode=lambda *_: [1, 2]), pictures=True)
        assert not [request for request in server.requests if request.method == "POST"]


@pytest.mark.parametrize("kind", ["pil", "png"])
@pytest.mark.parametrize("options", [{"backend": "inline"}, {"workers": 1}], ids=["inline", "process"])
async def test_pictures_of_pil_and_of_files_are_sent_exactly(kind: str, options: dict[str, Any]) -> None:
    pytest.importorskip("PIL.Image")
    from PIL import Image

    policy = Asked()
    async with EnvPool(**options) as pool, pool.open(WALK, text=True, pictures=kind) as env:
        trajectory = await run_rollout(env, ChatAgent(policy), seed=7)
    assert trajectory.valid
    assert from_plain(to_plain(trajectory)).final.images[0].startswith(b"\x89PNG")
    url = policy.requests[1].messages[-1]["content"][1]["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert (np.asarray(sent) == np.full((4, 4, 3), 8)).all()


async def test_what_is_no_picture_is_reported() -> None:
    with pytest.raises(UsageError, match="a PIL image or a file's bytes, not a list"):
        await played(ChatAgent(Asked()), pictures="list")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_server_that_tokenises_anew_splits_the_trajectory(kind: Any) -> None:
    """The server's prompts leave out the end of its own replies, so that none goes on exactly."""
    async with llm_server(kind=kind) as server, OpenAIPolicy(server.url, "m") as policy:
        trajectory = await played(ChatAgent(policy))
    assert trajectory.stop_reason == "invalid"
    assert [turn.joined for turn in trajectory.turns] == [False] * 10
    for turn in trajectory.turns:
        assert turn.prompt_ids is not None
        assert turn.prompt_ids.dtype == np.int32
        assert turn.token_ids is not None
        assert turn.logprobs is not None
        assert len(turn.token_ids) == len(turn.logprobs) == turn.usage.completion
        assert len(turn.prompt_ids) == turn.usage.prompt


ids = st.lists(st.integers(0, 3), max_size=6)


@given(st.lists(st.tuples(st.booleans(), ids, ids.filter(bool)), min_size=1, max_size=6))
def test_joined_means_that_the_prompt_continues_exactly(turns: list[tuple[bool, list[int], list[int]]]) -> None:
    sequence, known = TokenSequence(), list[int]()
    for number, (goes_on, new, sampled) in enumerate(turns):
        prompt = [*known, *new] if goes_on else new
        part, joined = sequence.add_turn(prompt, sampled)
        assert joined == (number > 0 and prompt[: len(known)] == known)
        assert [*(known if joined else []), *part.tolist()] == prompt
        known = [*prompt, *sampled]


@given(st.integers(0, 2**40), st.integers(0, 1000))
def test_sampling_seeds_are_small_and_differ_by_place(seed: int, turn: int) -> None:
    assert 0 <= sampling_seed(seed, turn) < 2**31
    assert sampling_seed(seed, turn) == sampling_seed(seed, turn)
    assert sampling_seed(seed, turn) != sampling_seed(seed, turn + 1)


class Recurrent:
    """Sums what it sees; notes all that it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def generate(self, request: Request) -> Generation:
        self.seen.append(request.data)
        if not isinstance(request.data, Recalled):
            return Generation("", action=1, logprobs=[-0.1])
        return Generation("", action=1, state=(request.data.state or 0) + request.data.observation)


async def test_markov_agent_sees_the_observation_alone() -> None:
    policy = Recurrent()
    trajectory = await played(MarkovAgent(policy), text=False)
    assert policy.seen == [7, 8, 9]
    assert [turn.action for turn in trajectory.turns] == [1, 1, 1]
    assert [turn.observation for turn in trajectory.turns] == [7, 8, 9]
    assert trajectory.final == 10
    assert trajectory.turns[0].logprobs is not None
    assert trajectory.messages == []


async def test_memory_is_carried_through_one_episode_and_no_further() -> None:
    policy = Recurrent()
    agent = MemoryAgent(policy)
    for _ in range(2):
        policy.seen.clear()
        trajectory = await played(agent, text=False)
        assert policy.seen == [Recalled(7), Recalled(8, 1, 1.0, 7), Recalled(9, 1, 1.0, 15)]
        assert [turn.observation for turn in trajectory.turns] == [7, 8, 9]


async def test_memory_markov_agent_records_the_state_of_each_step() -> None:
    trajectory = await played(MemoryMarkovAgent(Recurrent()), text=False)
    assert [turn.observation for turn in trajectory.turns] == [
        Remembered(7, None),
        Remembered(8, 7),
        Remembered(9, 15),
    ]
    assert [turn.anchor for turn in trajectory.turns] == [7, 8, 9]


async def test_numeric_agents_are_batched() -> None:
    sizes: list[int] = []

    def model(requests: list[Request]) -> list[int]:
        sizes.append(len(requests))
        return [1 for _ in requests]

    async with BatchedPolicy(model, max_wait=0.0) as policy:
        trajectory = await played(MarkovAgent(policy), text=False)
    assert trajectory.reward == 3.0
    assert sizes == [1, 1, 1]


@pytest.mark.parametrize("actions", [[1, 2, 3], gymnasium.spaces.Discrete(4, start=1)])
async def test_random_agent_is_random_by_its_seed(actions: Any) -> None:
    agent = RandomAgent(actions)
    first = [(await played(agent, seed=seed, text=False)).reward for seed in range(8)]
    again = [(await played(agent, seed=seed, text=False)).reward for seed in range(8)]
    assert first == again
    assert len({*first}) > 1


async def test_random_agent_answers_in_words() -> None:
    player = RandomAgent(["left"]).open("s", 1)
    assert (await player.act(Outcome("here"), tokens_left=None)).action == "<answer>left</answer>"
    with pytest.raises(UsageError, match="list of actions"):
        RandomAgent("left")


async def test_policy_that_gives_nothing_to_join() -> None:
    trajectory = await played(ChatAgent(ScriptedPolicy(["go 1"])))
    assert trajectory.turns[0].prompt_ids is None
    assert trajectory.turns[0].token_ids is None
