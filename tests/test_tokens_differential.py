"""Random conversations with a toy model, as arrays, against a slow and simple derivation from what was said."""

import json
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from asyncrollout import (
    Batch,
    ChatAgent,
    Generation,
    Group,
    Limits,
    Observation,
    Outcome,
    ProviderError,
    Request,
    Sampling,
    Trajectory,
    advantages,
    run_rollout,
)
from asyncrollout.policies.openai import codec
from asyncrollout.policies.openai.codec import Mode, ServerKind

START, END, MERGED = 1, 2, 999
ROLES = {"system": 3, "user": 4, "assistant": 5}
NAMES = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "max_rl", "pass_at_k"]
STOP = "<"
CONVERSATIONS = 150


def tokens(text: str, *, merges: bool = False) -> list[int]:
    """One for each letter; a tokenizer that merges has one for "ab", which the model samples as two."""
    if merges and "ab" in text:
        before, _, after = text.partition("ab")
        return [*tokens(before), MERGED, *tokens(after, merges=True)]
    return [10 + ord(letter) for letter in text]


def rendered(messages: list[dict[str, Any]], *, merges: bool = False) -> list[int]:
    """The chat template."""
    ids = []
    for message in messages:
        ids += [START, ROLES[message["role"]], *tokens(message["content"], merges=merges), END]
    return [*ids, START, ROLES["assistant"]]


def encode(messages: list[dict[str, Any]], is_start: bool) -> list[int]:
    """The user's: a reply ended with END, so that new messages follow it."""
    assert is_start or [message["role"] for message in messages] == ["user"]
    return rendered(messages)


@dataclass
class Call:
    """What the model saw and sampled, and what was recorded of it."""

    messages: list[dict[str, Any]]
    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]
    text: str
    version: int
    tells_ids: bool
    knows_end: bool


@dataclass
class Toy:
    """A server, down to its bytes; its calls are answered by chance."""

    rng: random.Random
    style: ServerKind
    merges: bool
    troubles: bool
    calls: dict[str, list[Call]] = field(default_factory=dict)

    async def generate(self, request: Request) -> Generation:
        mode: Mode = "chat" if request.prompt_ids is None else "completions"
        body = json.loads(codec.encode(request, "toy", mode, self.style, logprobs=True))
        prompt = body["prompt"] if mode == "completions" else rendered(body["messages"], merges=self.merges)
        event = self.rng.choice(["end", "end", "end", "length", "abort", "nothing", "no ids", "fail"])
        if event in ("abort", "no ids", "fail") and not self.troubles:
            event = "end"
        if event == "fail" and self.rng.random() < 0.5:
            raise ProviderError("out of order")
        answer, call = self._answer(request, body, prompt, event, mode)
        stops = codec.stops_of(request.sampling)
        generation = codec.decode(json.dumps(answer).encode(), logprobs=True, stops=stops, kind=self.style)
        if event != "abort":
            self.calls.setdefault(request.session, []).append(call)
        fields = {name: getattr(generation, name) for name in generation.__struct_fields__}
        return Generation(**{**fields, "version": call.version})

    def _answer(self, request: Request, body: Any, prompt: list[int], event: str, mode: Mode) -> tuple[Any, Call]:
        text = "" if event == "nothing" else "".join(self.rng.choice("ab<") for _ in range(self.rng.randint(1, 6)))
        sampled, finish = [*tokens(text), END], "stop"
        stopped: str | None = None
        if STOP in body.get("stop", ()) and STOP in text:
            cut = text.index(STOP)
            text, sampled, stopped = text[: cut + 1], tokens(text[: cut + 1]), STOP
            if not body.get("include_stop_str_in_output"):
                text = text[:cut]
        most = min(body.get("max_tokens") or 99, self.rng.randint(1, 4) if event == "length" else 99)
        if most < len(sampled):
            sampled, finish, stopped = sampled[:most], "length", None
            text = text[:most]
        if event == "abort":
            sampled, text, finish, stopped = sampled[:1], text[:1], "abort", None
        logprobs = [-(token % 7) / 8 - place / 64 for place, token in enumerate(sampled)]
        names = ["" if token == END else chr(token - 10) for token in sampled]
        entries = [{"token": name, "logprob": number} for name, number in zip(names, logprobs, strict=True)]
        choice: dict[str, Any] = {"finish_reason": finish, "logprobs": {"content": entries}}
        if mode == "completions" and self.style == "vllm":
            choice["logprobs"] = {"tokens": names, "token_logprobs": logprobs}
        choice |= {"text": text} if mode == "completions" else {"message": {"role": "assistant", "content": text}}
        answer: dict[str, Any] = {
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)},
        }
        tells_ids = event != "no ids"
        if self.style == "vllm":
            choice["stop_reason"] = stopped
            if tells_ids:
                choice["token_ids"] = sampled
                (choice if mode == "completions" else answer)["prompt_token_ids"] = prompt
        elif sampled == [END] and event != "abort":
            choice["logprobs"] = None  # llama.cpp does not tell an end that comes at once
            if "stop" in body:
                tells_ids = False  # it might have been the beginning of a text to stop at
            else:
                sampled, logprobs = [], []
        elif tells_ids:
            for entry, token in zip(entries, sampled, strict=True):
                entry["id"] = token
        knows_end = sampled[-1:] == [END] and (self.style == "vllm" or "stop" not in body)
        version = self.rng.randint(0, 3)
        return answer, Call(request.messages, prompt, sampled, logprobs, text, version, tells_ids, knows_end)


class Room:
    """An env whose story is drawn beforehand."""

    name = "room"
    worked = None

    def __init__(self, rng: random.Random) -> None:
        turns = rng.randint(1, 5)
        self.story = [
            ("".join(rng.choice("xyab") for _ in range(3)), float(rng.randint(-2, 3))) for _ in range(turns + 1)
        ]
        self.system = rng.choice([None, "sys"])
        self.at = 0

    async def reset(self, **_: Any) -> Outcome:
        return Outcome(Observation(self.story[0][0]), info={"system_prompt": self.system} if self.system else {})

    async def step(self, _action: Any) -> Outcome:
        self.at += 1
        text, reward = self.story[self.at]
        return Outcome(Observation(text), reward, terminated=self.at == len(self.story) - 1)


@dataclass
class Played:
    batch: Batch
    toy: Toy
    agent: ChatAgent

    def calls(self, trajectory: Trajectory) -> list[Call]:
        """Those that became turns."""
        return self.toy.calls.get(trajectory.uid, [])[: len(trajectory.turns)]


async def played(seed: int, *, style: ServerKind = "vllm", troubles: bool = True) -> Played:
    rng = random.Random(seed)
    toy = Toy(rng, style, merges=rng.random() < 0.3, troubles=troubles)
    speaks_tokens = style == "llamacpp" or rng.random() < 0.6
    extra = {"include_stop_str_in_output": True} if rng.random() < 0.3 else {}
    agent = ChatAgent(
        toy,
        history=rng.choice([None, None, 0, 1, 2]),
        system_prompt=rng.choice([None, "", "own"]),
        sampling=Sampling(stop=(STOP,) if rng.random() < 0.5 else (), extra=extra),
        encode=encode if speaks_tokens else None,
        end_ids=[END] if speaks_tokens and rng.random() < 0.5 else (),
    )
    limits = Limits(tokens=rng.choice([None, None, 7]))
    groups = []
    for number in range(rng.randint(1, 3)):
        members = []
        for member in range(rng.randint(1, 3)):
            uid = f"g{number}.{member}"
            members.append(await run_rollout(Room(rng), agent, seed=number, uid=uid, member=member, limits=limits))
        groups.append(Group(f"g{number}", members))
    return Played(Batch(0, groups), toy, agent)


# The reference


@dataclass
class Row:
    owner: int
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # of each token: the turn that sampled it, or -1

    def add(self, ids: list[int], call: Call, turn: int, numbers: list[float] | None) -> None:
        for place, token in enumerate(ids):
            self.tokens.append(token)
            self.mask.append(0 if numbers is None else 1)
            self.logprobs.append(0.0 if numbers is None else numbers[place])
            self.versions.append(-1 if numbers is None else call.version)
            self.turns.append(-1 if numbers is None else turn)


def expected_rows(made: Played) -> list[Row]:
    """Each prompt that begins with all of the row so far goes on with it; else it is a row of its own."""
    rows = []
    for owner, trajectory in enumerate(made.batch.trajectories):
        row: Row | None = None
        for turn, call in enumerate(made.calls(trajectory)):
            if not call.tells_ids:
                continue
            if row is None or call.prompt[: len(row.tokens)] != row.tokens:
                row = Row(owner)
                rows.append(row)
            row.add(call.prompt[len(row.tokens) :], call, turn, None)
            row.add(call.sampled, call, turn, call.logprobs)
    return rows


def expected_rewards(made: Played, rows: list[Row]) -> list[list[float]]:
    """Each turn's on its last token; else on that of the turn before, of the next, or on the trajectory's last."""
    rewards = [[0.0] * len(row.tokens) for row in rows]
    for owner, trajectory in enumerate(made.batch.trajectories):
        own = [(number, row) for number, row in enumerate(rows) if row.owner == owner]
        lasts = {}
        for number, row in own:
            for place, turn in enumerate(row.turns):
                if turn >= 0:
                    lasts[turn] = (number, place)
        for turn, made_turn in enumerate(trajectory.turns):
            before = [at for at in lasts if at <= turn]
            after = [at for at in lasts if at > turn]
            if before:
                number, place = lasts[max(before)]
            elif after:
                number, place = lasts[min(after)]
            elif own:
                number, place = own[-1][0], len(own[-1][1].tokens) - 1
            else:
                continue
            rewards[number][place] += made_turn.reward
    return rewards


def expected_worth(made: Played, name: Any) -> list[list[float]]:
    """Of each turn of each trajectory."""
    everyone = made.batch.trajectories
    group = [place for place, group in enumerate(made.batch.groups) for _ in group.trajectories]
    counted = [owner for owner, trajectory in enumerate(everyone) if trajectory.valid]
    worth = [[0.0] * len(trajectory.turns) for trajectory in everyone]
    if not counted:
        return worth
    if name == "gigpo":
        flat = [(owner, turn) for owner in counted for turn in range(len(everyone[owner].turns))]
        turns = [everyone[owner].turns[turn] for owner, turn in flat]
        found = advantages.gigpo(
            group=[group[owner] for owner, _ in flat],
            trajectory=[owner for owner, _ in flat],
            reward=[turn.reward for turn in turns],
            anchor=[turn.observation.text for turn in turns],
            valid=[turn.valid for turn in turns],
        ).advantage
        for (owner, turn), number in zip(flat, found, strict=True):
            worth[owner][turn] = number
        return worth
    scores, groups = [everyone[owner].reward for owner in counted], [group[owner] for owner in counted]
    if name == "dr_grpo":  # by hand
        means = {one: np.mean([score for score, of in zip(scores, groups, strict=True) if of == one]) for one in groups}
        of_each = [float(score - means[of]) for score, of in zip(scores, groups, strict=True)]
    else:
        function = getattr(advantages, name) if isinstance(name, str) else name
        of_each = function(np.array(scores), np.array(groups))
    for owner, number in zip(counted, of_each, strict=True):
        worth[owner] = [number] * len(everyone[owner].turns)
    return worth


def goes_on(before: Call, after: Call) -> bool:
    """Whether a turn was shown all that the one before was, its reply, and what is new."""
    size = len(before.messages)
    return len(after.messages) == size + 2 and after.messages[:size] == before.messages


def expected_prompts(made: Played, trajectory: Trajectory) -> list[list[int]]:
    """With `encode`: from the start, or the turn before with its end, and then what is new."""
    prompts = []
    before: Call | None = None
    for call in made.calls(trajectory):
        shift = before is not None and not goes_on(before, call)
        if before is None or shift or not before.tells_ids or not (before.knows_end or made.agent.end_ids):
            prompts.append(rendered(call.messages))
        else:
            end = [] if before.sampled[-1:] == [END] else [END]
            prompts.append([*before.prompt, *before.sampled, *end, *rendered(call.messages[-1:])])
        before = call
    return prompts


SEEDS = range(CONVERSATIONS)


@pytest.mark.parametrize("style", ["vllm", "llamacpp"])
async def test_prompts_of_tokens_are_well_formed_and_lose_nothing(style: Any) -> None:
    for seed in SEEDS:
        made = await played(seed, style=style)
        if made.agent.encode is None:
            continue
        for trajectory in made.batch.trajectories:
            calls = made.calls(trajectory)
            assert [call.prompt for call in calls] == expected_prompts(made, trajectory), seed
            for call in calls:
                starts = [place for place, token in enumerate(call.prompt) if token == START]
                assert all(call.prompt[place - 1] == END for place in starts[1:]), seed
                assert len(starts) == len(call.messages) + 1, seed
                assert call.messages[0]["role"] != "system" or call.prompt[1] == ROLES["system"], seed


@pytest.mark.parametrize("style", ["vllm", "llamacpp"])
@pytest.mark.parametrize("pad", ["left", "right"])
async def test_rows_of_tokens(style: Any, pad: Any) -> None:
    seen: set[str] = set()
    for seed in SEEDS:
        made = await played(seed, style=style)
        rows = expected_rows(made)
        if not rows:
            continue
        name: Any = [None, "gigpo", lambda scores, _groups: scores * 2, *NAMES][seed % (len(NAMES) + 3)]
        longest = max(len(row.tokens) for row in rows)
        length = longest + seed % 3 if seed % 2 else None
        arrays = made.batch.to_arrays(name, form="tokens" if seed % 4 else "auto", pad=pad, pad_id=7, length=length)
        width = length or longest
        worth = None if name is None else expected_worth(made, name)
        wanted: dict[str, list[list[Any]]] = {
            "input_ids": [row.tokens for row in rows],
            "attention_mask": [[1] * len(row.tokens) for row in rows],
            "position_ids": [list(range(len(row.tokens))) for row in rows],
            "response_mask": [row.mask for row in rows],
            "old_logprobs": [row.logprobs for row in rows],
            "versions": [row.versions for row in rows],
            "turn_rewards": expected_rewards(made, rows),
        }
        if worth is not None:
            wanted["advantages"] = [
                [worth[row.owner][turn] if turn >= 0 else 0.0 for turn in row.turns] for row in rows
            ]
        for column, values in wanted.items():
            filler = {"input_ids": 7, "versions": -1}.get(column, 0)
            for row, numbers in enumerate(values):
                filling = [filler] * (width - len(numbers))
                whole = filling + numbers if pad == "left" else numbers + filling
                np.testing.assert_allclose(arrays[column][row], whole, rtol=1e-6, err_msg=f"{column}, seed {seed}")
        owners = [row.owner for row in rows]
        everyone = made.batch.trajectories
        assert arrays["trajectory"].tolist() == owners, seed
        assert arrays["sample"].tolist() == [owners[:place].count(owner) for place, owner in enumerate(owners)], seed
        assert arrays["uids"] == [everyone[owner].uid for owner in owners], seed
        assert arrays["valid"].tolist() == [everyone[owner].valid for owner in owners], seed
        assert arrays["rewards"].tolist() == [everyone[owner].reward for owner in owners], seed
        assert ("advantages" in arrays) == (worth is not None), seed
        assert set(arrays) == {*wanted, "trajectory", "group_ids", "uids", "valid", "rewards", "sample"}, seed
        seen |= _kinds(made, rows)
    assert seen >= {"several rows", "joined", "masked end", "without ids", "failed", "several versions"}


def _kinds(made: Played, rows: list[Row]) -> set[str]:
    """What was met, lest the conversations become too tame to find anything."""
    found = set()
    for row in rows:
        found |= {"joined"} if len({*row.turns}) > 2 else set()
        found |= {"several versions"} if len({*row.versions}) > 2 else set()
        ends = [place for place, token in enumerate(row.tokens) if token == END and place]
        found |= {"masked end"} if any(row.mask[at - 1] and not row.mask[at] for at in ends) else set()
    owners = [row.owner for row in rows]
    found |= {"several rows"} if len(owners) > len({*owners}) else set()
    for trajectory in made.batch.trajectories:
        found |= set() if trajectory.valid else {"failed"}
        found |= set() if all(call.tells_ids for call in made.calls(trajectory)) else {"without ids"}
    return found


async def test_rows_of_texts() -> None:
    """Each ends with the reply to what was shown; all messages that the model saw, and no others."""
    for seed in SEEDS:
        made = await played(seed)
        everyone = made.batch.trajectories
        if not any(trajectory.turns for trajectory in everyone):
            continue
        name: Any = ["dr_grpo", "gigpo", None][seed % 3]
        arrays = made.batch.to_arrays(name, form="texts")
        worth = None if name is None else expected_worth(made, name)
        place = 0
        for owner, trajectory in enumerate(everyone):
            calls = made.calls(trajectory)
            is_whole = all(goes_on(*pair) for pair in pairwise(calls)) and name != "gigpo"
            of_row = [[*range(len(calls))]] if is_whole and calls else [[turn] for turn in range(len(calls))]
            for turns in of_row:
                last = calls[turns[-1]]
                assert arrays["messages"][place] == [*last.messages, {"role": "assistant", "content": last.text}], seed
                assert arrays["replies"][place] == [len(calls[turn].messages) for turn in turns], seed
                assert arrays["trajectory"][place] == owner, seed
                assert arrays["versions"][place] == min(calls[turn].version for turn in turns), seed
                assert arrays["turn_rewards"][place] == sum(trajectory.turns[turn].reward for turn in turns), seed
                if worth is not None:
                    assert arrays["advantages"][place] == pytest.approx(worth[owner][turns[0]]), seed
                place += 1
        assert place == len(arrays["messages"]), seed
