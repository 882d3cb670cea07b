"""Turns as rows of tokens: the sequence of each sample, and what a loss needs to know of each token."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrollout.batches.flat_turns import FlatTurns, Floats, Ints
from asyncrollout.batches.samples import samples
from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger

Pad = Literal["left", "right"]

log = get_logger(__name__)

_NOTHING: Ints = np.zeros(0, dtype=np.int32)


def token_arrays(
    flat: FlatTurns, advantages: Floats | None, *, pad: Pad, pad_id: int, length: int | None
) -> dict[str, Any]:
    """One row per sample, that is, per run of turns whose prompts continue each other.

    A turn without token ids has no tokens here, unless a later prompt of its sample contains them. If only some turns
    have logprobs, the replies of the others are masked like prompts.
    """
    known = flat.has_ids
    logprobs = [turn.logprobs if has_ids else None for turn, has_ids in zip(flat.turns, known, strict=True)]
    parts = _parts(flat, known, logprobs)
    sizes = np.array([len(part) for part in parts], dtype=np.intp).reshape(-1, 2)
    starts = _sample_starts(flat)
    lengths = np.add.reduceat(sizes.sum(axis=1), starts)
    owners = flat.trajectory[starts]
    lengths, owners = lengths[lengths > 0], owners[lengths > 0]  # a sample without tokens has no row
    sample = np.arange(len(owners)) - np.searchsorted(owners, owners)
    shown = _mask(lengths, _width(flat, lengths, owners, length), pad)
    spoken = _filled(shown, np.repeat(np.tile([False, True], len(sizes)), sizes.ravel()), False)
    counts = sizes[:, 1]
    versions = np.array([turn.version for turn in flat.turns], dtype=np.int32)
    arrays = {
        "input_ids": _filled(shown, np.concatenate(parts, dtype=np.int32, casting="unsafe"), pad_id),
        "attention_mask": shown.astype(np.int32),
        "position_ids": (np.cumsum(shown, axis=1, dtype=np.int32) - 1) * shown,
        "response_mask": spoken.astype(np.int32),
        "versions": _filled(spoken, np.repeat(versions, counts), -1),
        "turn_rewards": _turn_rewards(flat, sizes, lengths, shown),
        "sample": sample.astype(np.int32),
        **flat.columns(owners),
    }
    if any(each is not None for each in logprobs):
        arrays["old_logprobs"] = _filled(spoken, _joined(logprobs, counts, flat), 0)
    if advantages is not None:
        arrays["advantages"] = _filled(spoken, np.repeat(advantages, counts), 0)
    return arrays


def _sample_starts(flat: FlatTurns) -> NDArray[np.intp]:
    """The turns, among all, that start a sample."""
    starts, first = [], 0
    for trajectory in flat.trajectories:
        starts += [first + sample.start for sample in samples(trajectory)]
        first += len(trajectory.turns)
    return np.array(starts, dtype=np.intp)


def _filled(places: NDArray[np.bool_], values: NDArray[Any], otherwise: float) -> NDArray[Any]:
    """Values of tokens, in order, put into the rows."""
    rows = np.full(places.shape, otherwise, dtype=values.dtype)
    rows[places] = values
    return rows


def _parts(flat: FlatTurns, known: NDArray[np.bool_], logprobs: list[Any]) -> list[Ints]:
    """For each turn two entries: the tokens of its prompt, and those that were sampled."""
    unknown = np.flatnonzero(~known)
    if unknown.size:
        if not known.any():
            raise UsageError(f"{flat.name(0)} has no token ids, nor does any other turn: use form='texts'")
        log.warning("turns_without_token_ids", turns=unknown.size, of=known.size, first=flat.name(int(unknown[0])))
    has_logprobs = any(each is not None for each in logprobs)
    masked = 0
    parts = []
    for turn, numbers in zip(flat.turns, logprobs, strict=True):
        if turn.prompt_ids is None or turn.token_ids is None:
            parts += [_NOTHING, _NOTHING]
        elif has_logprobs and numbers is None and len(turn.token_ids):
            masked += 1
            parts += [np.concatenate([turn.prompt_ids, turn.token_ids]), _NOTHING]
        else:
            parts += [turn.prompt_ids, turn.token_ids]
    if masked:
        log.warning("turns_without_logprobs", turns=masked, of=known.size)
    return parts


def _width(flat: FlatTurns, lengths: NDArray[np.intp], owners: Ints, length: int | None) -> int:
    if not lengths.size:
        raise UsageError("no turn of the batch has any tokens: there is nothing to make arrays of")
    longest = int(lengths.argmax())
    if length is not None and lengths[longest] > length:
        uid = flat.trajectories[owners[longest]].uid
        raise UsageError(
            f"trajectory {uid!r} has a sample of {lengths[longest]} tokens, more than length={length}: "
            "samples are never cut off; use a greater length, or limit the rollouts"
        )
    return int(lengths[longest]) if length is None else length


def _mask(lengths: NDArray[np.intp], width: int, pad: Pad) -> NDArray[np.bool_]:
    columns = np.arange(width)
    if pad == "left":
        return columns >= width - lengths[:, None]
    return columns < lengths[:, None]


def _joined(logprobs: list[Any], counts: NDArray[np.intp], flat: FlatTurns) -> NDArray[np.float32]:
    """The logprobs of all sampled tokens, in order."""
    for row, (numbers, count) in enumerate(zip(logprobs, counts.tolist(), strict=True)):
        if numbers is not None and len(numbers) != count:
            raise UsageError(f"{flat.name(row)} has {count} sampled tokens, but {len(numbers)} logprobs")
    return np.concatenate([part for part in logprobs if part is not None], dtype=np.float32, casting="unsafe")


def _turn_rewards(
    flat: FlatTurns, sizes: NDArray[np.intp], lengths: NDArray[np.intp], shown: NDArray[np.bool_]
) -> Floats:
    """Each turn's reward, on its last sampled token."""
    places = _reward_places(flat, sizes)
    rewards, places = flat.turn_reward[places >= 0], places[places >= 0]
    firsts = np.cumsum(lengths) - lengths  # each row's first token, among all
    rows = np.searchsorted(firsts, places, side="right") - 1
    columns = places - firsts[rows] + shown.argmax(axis=1)[rows]
    placed = np.zeros(shown.shape)
    np.add.at(placed, (rows, columns), rewards)
    return placed


def _reward_places(flat: FlatTurns, sizes: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each turn the token, among all, that gets its reward: the last one it sampled; -1 if there is none.

    A turn that sampled nothing gives its reward to the turn before it, or else to the next one of its trajectory; if
    the whole trajectory sampled nothing, to the trajectory's last token.
    """
    lasts = np.cumsum(sizes.sum(axis=1)) - 1
    places = lasts.copy()
    for row in np.flatnonzero(sizes[:, 1] == 0):
        mates = np.flatnonzero(flat.trajectory == flat.trajectory[row])
        speakers = mates[sizes[mates, 1] > 0]
        if speakers.size:
            places[row] = lasts[speakers[max(np.searchsorted(speakers, row) - 1, 0)]]
        else:
            places[row] = lasts[mates[-1]] if sizes[mates].any() else -1
    return places
