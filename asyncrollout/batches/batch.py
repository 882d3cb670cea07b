"""A batch: groups of trajectories, as objects, as arrays and as files."""

from os import PathLike
from typing import Any, Literal, Self, get_args

import anyio.to_thread
import msgspec

from asyncrollout import notebook
from asyncrollout.batches.advantage import GIGPO, Advantage, Normalization, normalized, turn_advantages
from asyncrollout.batches.files import read, write
from asyncrollout.batches.flat_turns import FlatTurns, flatten
from asyncrollout.batches.samples import has_ids
from asyncrollout.batches.steps import step_arrays
from asyncrollout.batches.texts import text_arrays
from asyncrollout.batches.tokens import Pad, token_arrays
from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Group, Trajectory
from asyncrollout.validation import did_you_mean

Form = Literal["tokens", "steps", "texts"]

_FORMS = list(get_args(Form))
_ARGUMENTS = ["form", "pad", "pad_id", "length", "reward_normalization"]
_NAMED = 3  # how many trajectories an error names


class Batch(msgspec.Struct, frozen=True):
    """The groups of one training step, and statistics of how they were sampled."""

    index: int
    groups: list[Group]
    stats: dict[str, float] = {}

    def __repr__(self) -> str:
        return notebook.batch_line(self)

    def _repr_html_(self) -> str:
        return notebook.batch_html(self)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    def to_arrays(
        self,
        advantage: Advantage = "grpo",
        *,
        form: Form | Literal["auto"] = "auto",
        pad: Pad = "right",
        pad_id: int = 0,
        length: int | None = None,
        reward_normalization: Normalization | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Numpy arrays by name, with a row per sample of tokens, per step or per text; `docs/batches.md` lists them.

        In every form, `rewards` are those of the row's trajectory, `turn_rewards` those of its turns or steps.
        `advantage` is a name from `asyncrollout.advantages`, with its `options`, or a function `(scores, groups)` of
        the trajectories that have an outcome; the others have advantage 0. `length` pads rows of tokens to a length.
        `reward_normalization`, such as `{"grouping": "state", "method": "mean_std"}`, turns rewards into scores first.
        """
        if pad not in ("left", "right"):
            raise UsageError(f"pad={pad!r} is neither 'left' nor 'right'")
        if length is not None and length < 1:
            raise UsageError(f"length={length} must be at least 1")
        if not -(2**31) <= pad_id < 2**31:
            raise UsageError(f"pad_id={pad_id} is not a 32-bit number")
        flat = flatten(self.groups)
        chosen = _form(flat) if form == "auto" else form
        if chosen not in _FORMS:
            raise UsageError(f"form={form!r} is not a form{did_you_mean(str(form), ['auto', *_FORMS])}")
        scores = normalized(flat, reward_normalization)
        advantages = turn_advantages(flat, scores, advantage, options, _ARGUMENTS)
        if chosen == "tokens":
            arrays = token_arrays(flat, advantages, pad=pad, pad_id=pad_id, length=length)
        elif chosen == "steps":
            arrays = step_arrays(flat, advantages)
        else:
            arrays = text_arrays(flat, advantages, by_turn=advantage == GIGPO)
        return arrays if reward_normalization is None else {**arrays, "scores": scores[arrays["trajectory"]]}

    async def save(self, path: str | PathLike[str]) -> None:
        """Write `.jsonl` or `.parquet`, atomically, without blocking the event loop."""
        await anyio.to_thread.run_sync(write, path, self.index, self.groups, self.stats)

    @classmethod
    async def load(cls, path: str | PathLike[str]) -> Self:
        """Read a file of `save`; a `UsageError` says where a file is wrong."""
        return cls(*await anyio.to_thread.run_sync(read, path))


def _form(flat: FlatTurns) -> Form:
    """The form that fits all trajectories; tokens, if only some text replies lack token ids."""
    found: dict[Form, list[str]] = {}
    for trajectory in flat.trajectories:
        if trajectory.turns:
            found.setdefault(_form_of(trajectory), []).append(trajectory.uid)
    if len(found) == 1:
        return next(iter(found))
    if found.keys() == {"tokens", "texts"}:
        return "tokens"
    mixed = ", ".join(f"{form!r} for {_some(uids)}" for form, uids in found.items())
    raise UsageError(f"the batch mixes forms: {mixed}; choose one for all with form=...")


def _form_of(trajectory: Trajectory) -> Form:
    if any(map(has_ids, trajectory.turns)):
        return "tokens"
    return "texts" if trajectory.messages or any(turn.reply for turn in trajectory.turns) else "steps"


def _some(uids: list[str]) -> str:
    more = f" and {len(uids) - _NAMED} more" if len(uids) > _NAMED else ""
    return ", ".join(map(repr, uids[:_NAMED])) + more
