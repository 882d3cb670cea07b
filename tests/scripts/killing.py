"""Plays runs that are killed at random bytes of their files and resumed, until each has come to its end.

    killing.py DIRECTORY KILLS SEED

Every attempt is a process of its own, which kills itself in the middle of a write. Prints one JSON object: how many
kills there were, and what differs from the same runs without any.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

import anyio.lowlevel
import msgspec

from asyncrollout import Failures, Generation, Group, ProviderError, Request, Rollouts, filters
from asyncrollout.journal import writer
from asyncrollout.journal.history import read_past
from asyncrollout.seeding import sampling_seed
from tests.envs.rollout import WALK

BATCHES, GROUPS = 4, 3


def compare(group: Group) -> list[float]:
    """How much each member is better than the mean of all."""
    return [float(reward) for reward in group.rewards - group.rewards.mean()]


RUNS: dict[str, dict[str, Any]] = {
    "batches in start order": {"order": "start", "keep": filters.reward_varies},
    "collect": {"keep": filters.reward_varies, "max_lag": 0},
    "tasks that fail": {"order": "start", "tasks": range(40), "failures": Failures(retries=1)},
    "scored as groups": {"order": "start", "score": compare},
    "a filter of batches": {"order": "start", "keep": filters.top_std(0.5)},
    "filled up": {
        "order": "start",
        "keep": filters.success_between(0.3, 0.4),
        "on_exhausted": "fill",
        "max_num_gen_batches": 2,
    },
    "finish order": {"keep": filters.reward_varies},
}


class Model:
    """Its replies depend on session and turn alone; it tells of each call in a file, before it is killed."""

    def __init__(self, calls: Path) -> None:
        self._calls = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def generate(self, request: Request) -> Generation:
        os.write(self._calls, f"{request.session} {request.turn}\n".encode())
        number = sampling_seed(0, request.session, request.turn)
        for _ in range(1 + number % 5):
            await anyio.lowlevel.checkpoint()
        if request.turn == 0 and number % 11 == 0:
            raise ProviderError("no answer")
        return Generation(f"go {number % 2}", token_ids=[number, 1], logprobs=[-0.5, -1.0], prompt_ids=[request.turn])


async def play(directory: Path, options: dict[str, Any], *, resume: bool) -> None:
    model = Model(directory / "calls.txt")
    async with Rollouts(
        WALK, env_kwargs={"turns": None}, policy=model, group_size=3, seed=5, run_dir=directory / "run", resume=resume,
        **options,
    ) as rollouts:  # fmt: skip
        while rollouts.next_batch < BATCHES:
            if "max_lag" in options:
                batch = await rollouts.collect(groups=GROUPS)
            else:
                batch = await anext(rollouts.batches(groups=GROUPS))
            assert len(batch.groups) == GROUPS


def attempt(directory: Path, options: dict[str, Any], *, resume: bool, bytes_left: float) -> bool:
    """Whether the run came to its end; else it was killed after so many bytes."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return False
        if status:
            sys.exit(f"the run in {directory} failed")
        return True
    write = writer._append

    async def write_a_part(file: Any, content: bytes) -> None:
        nonlocal bytes_left
        if len(content) >= bytes_left:
            await write(file, content[: int(bytes_left)])
            os.kill(os.getpid(), signal.SIGKILL)
        bytes_left -= len(content)
        await write(file, content)

    writer._append = write_a_part
    asyncio.run(play(directory, options, resume=resume))
    os._exit(0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def journal(directory: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (directory / "run" / writer.JOURNAL).open("rb") if line[-1:] == b"\n"]


def recorded_of(directory: Path) -> dict[str, Any]:
    """What a run has come to: the groups of each batch, and the trajectories of those."""
    batches = [(event["batch"], event["groups"]) for event in journal(directory) if event["event"] == "delivered"]
    delivered = {group for _, groups in batches for group in groups}
    keep = ("reward", "stop_reason", "metrics")
    return {
        "batches": batches,
        "trajectories": {
            record["uid"]: [[turn["reply"] for turn in record["turns"]], *[record[key] for key in keep]]
            for record in lines(directory / "run" / writer.TRAJECTORIES)
            if record["group"] in delivered
        },
    }


def wrong_with(directory: Path, seen: set[str]) -> list[str]:
    """What no run may do: finish a rollout twice, deliver one twice, ask again for a reply that was recorded."""
    wrong, over = [], set[str]()
    for event in journal(directory):
        if event["event"] == "cancelled":
            over = {uid for uid in over if not uid.startswith(f"{event['group']}.")}
        if event["event"] == "finished":
            wrong += [f"{event['uid']} finished twice"] if event["uid"] in over else []
            over.add(event["uid"])
    delivered = [group for _, groups in recorded_of(directory)["batches"] for group in groups]
    wrong += [f"{group} delivered twice" for group in {*delivered} if delivered.count(group) > 1]
    return wrong + [f"{call} asked again" for call in seen]


def recorded(directory: Path) -> set[str]:
    """Turns that a resumed run must not ask for: those of rollouts that are under way, or finished and wait."""
    past = read_past(directory / "run")
    under_way = {f"{uid} {reply.turn}" for uid, replies in past.replies.items() for reply in replies}
    return under_way | {f"{uid} {turn}" for uid, one in past.finished.items() for turn in range(len(one.turns))}


def main() -> None:
    base, kills, random = Path(sys.argv[1]), int(sys.argv[2]), Random(int(sys.argv[3]))
    killed, wrong = 0, list[str]()
    clean: dict[str, Any] = {}
    for name, options in RUNS.items():
        directory = base / name
        directory.mkdir()
        assert attempt(directory, options, resume=False, bytes_left=float("inf"))
        clean[name] = recorded_of(directory)
    while killed < kills:
        name = random.choice([*RUNS])
        directory = base / f"{name} {killed}"
        directory.mkdir()
        asked_again = set[str]()
        is_over = resume = False
        size = sum(path.stat().st_size for path in (base / name / "run").glob("*.jsonl"))
        while not is_over:
            known = recorded(directory) if resume else set()
            before = (directory / "calls.txt").read_text().splitlines() if resume else []
            is_over = attempt(directory, RUNS[name], resume=resume, bytes_left=1 + random.randrange(size // 2))
            killed += not is_over
            resume = (directory / "run" / writer.JOURNAL).exists()
            asked_again |= known & {*(directory / "calls.txt").read_text().splitlines()[len(before) :]}
            given_up = {event["group"] for event in journal(directory) if event["event"] == "cancelled"}
            asked_again = {call for call in asked_again if call.rpartition(".")[0] not in given_up}
        wrong += [f"{directory.name}: {what}" for what in wrong_with(directory, asked_again)]
        result = recorded_of(directory)
        if name == "finish order":
            wrong += [] if len(result["batches"]) == BATCHES else [f"{directory.name}: {result['batches']}"]
        elif result != clean[name]:
            wrong.append(f"{directory.name}: {result['batches']} and not {clean[name]['batches']}, or other contents")
    print(json.dumps({"kills": killed, "wrong": wrong[:20]}))


if __name__ == "__main__":
    main()
