"""Runs that were recorded before the package's modules and classes were renamed; `tests/recorded` holds them.

They must stay readable. Each has an `expected.json`: what the code that recorded the run made
of it when it was resumed, so that a later version can be compared with it. `python -m tests.old_runs` records the
trainer's anew.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import anyio

from asyncrollout import (
    ChatAgent,
    Failures,
    Generation,
    Group,
    Limits,
    Request,
    Rollouts,
    ScriptedPolicy,
    Trajectory,
    Turn,
    Verdict,
)

RUNS = Path(__file__).parent / "recorded"
COMMAND_LINE, TRAINER = RUNS / "command_line", RUNS / "trainer"
OTHER_ROOMS = RUNS / "sokoban"
"""Rooms of Sokoban that its seeds no longer give: two groups delivered, and a third one with a reply each."""


def copied(run: Path, directory: Path) -> Path:
    """A copy that may be resumed."""
    return Path(shutil.copytree(run, directory / run.name))


def described(group: Group) -> list[Any]:
    """All that a trainer would see of a group."""
    members = [
        [one.uid, one.seed, one.reward, one.stop_reason.value, [_turn(turn) for turn in one.turns]]
        for one in group.trajectories
    ]
    return [group.id, group.tag, members]


def _turn(turn: Turn) -> list[Any]:
    tokens = [None if values is None else list(map(float, values)) for values in (turn.token_ids, turn.logprobs)]
    return [turn.reply, turn.reward, turn.version, *tokens]


class Model:
    """Pulls arms by the seed it is given; it may stop answering after so many replies."""

    def __init__(self, replies: float = float("inf")) -> None:
        self.left = replies
        self.calls = 0

    async def __call__(self, request: Request) -> Generation:
        if request.session == "g1.0":
            raise RuntimeError("no reply for this one")
        if self.left <= 0:
            await anyio.sleep_forever()
        self.left -= 1
        self.calls += 1
        seed = request.sampling.seed or 0
        ids = [seed % 97, seed % 89, 2]
        return Generation(
            f"<answer>{1 + seed % 2}</answer>", token_ids=ids, logprobs=[-0.5, -0.25, 0.0], prompt_ids=[1, 5, 7]
        )


async def _score(trajectory: Trajectory) -> float:
    return trajectory.reward + 0.5


def trainer_rollouts(directory: Path, model: Model, **options: Any) -> Rollouts:
    return Rollouts(
        "bandit",
        env_kwargs={"max_steps": 3},
        agent=ChatAgent(ScriptedPolicy(model), history=1, system_prompt="Find the better arm."),
        group_size=2,
        keep=lambda group: Verdict(keep=group.id != "g3", reason="" if group.id != "g3" else "third"),
        failures=Failures(retries=0, min_valid=1),
        score=_score,
        order="start",
        max_lag=2,
        max_in_flight=4,
        seed=11,
        run_dir=directory,
        **options,
    )


async def _record_trainer(directory: Path) -> None:
    model = Model()
    async with trainer_rollouts(directory, model) as rollouts:
        batches = rollouts.batches(groups=2)
        await anext(batches)
        async with rollouts.weight_update(1):
            pass
        await rollouts.evaluate(2, k=2)
        await anext(batches)
        model.left = 7
        with anyio.move_on_after(1):
            await anext(batches)


async def resumed(directory: Path, resume: Any = True) -> list[Any]:
    """The next three batches of the trainer's run."""
    async with trainer_rollouts(directory, Model(), resume=resume) as rollouts:
        batches = rollouts.batches(groups=2)
        return [[batch.index, [described(group) for group in batch.groups]] for batch in
                [await anext(batches) for _ in range(3)]]  # fmt: skip


def other_rooms_rollouts(directory: Path, **options: Any) -> Rollouts:
    async def reply(_: Request) -> Generation:
        return Generation("<answer>Up</answer>")

    return Rollouts(
        "sokoban",
        agent=ChatAgent(ScriptedPolicy(reply)),
        group_size=2,
        order="start",
        max_in_flight=2,
        limits=Limits(turns=2),
        failures=Failures(retries=0, min_valid=1),
        seed=3,
        run_dir=directory,
        **options,
    )


if __name__ == "__main__":
    shutil.rmtree(TRAINER, ignore_errors=True)
    anyio.run(_record_trainer, TRAINER)
    (TRAINER / ".lock").unlink()
    (TRAINER / "metrics.jsonl").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        expected = anyio.run(resumed, copied(TRAINER, Path(place)))
        again = anyio.run(resumed, copied(TRAINER, Path(place) / "again"), 0)
    (TRAINER / "expected.json").write_text(json.dumps({"on": expected, "again": again}, indent=1))
