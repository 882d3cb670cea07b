"""Finished rollouts, from their records: figures for statistics, and what the page shows."""

import math
from collections.abc import Container, Iterable, Iterator
from typing import Any

import msgspec

from asyncrollout.batches.batch_json import located_at
from asyncrollout.journal.files import TrajectoryFile
from asyncrollout.report.formatting import as_number, as_text, pictures_in, readable
from asyncrollout.report.videos import shown_video
from asyncrollout.serialization import KIND
from asyncrollout.successes import OWN_ENDS, RolloutResult
from asyncrollout.telemetry import LARGEST_REWARD


class _TurnRecord(msgspec.Struct):
    """A turn as recorded, without logprobs and prompt ids."""

    observation: Any = None
    reply: Any = ""
    action: Any = None
    reward: Any = 0.0
    valid: Any = True
    info: Any = None
    token_ids: Any = None
    first_message: Any = 0
    reasoning: Any = None
    tool_calls: Any = None
    finish_reason: Any = "stop"
    usage: Any = None
    version: Any = 0
    policy_seconds: Any = 0.0
    env_seconds: Any = 0.0
    env_work_seconds: Any = None
    frozen: Any = False
    oldest_version: Any = None
    replayed: Any = False


class RolloutRecord(msgspec.Struct):
    """A rollout as recorded."""

    uid: str
    group: str
    turns: list[_TurnRecord]
    tag: Any = ""
    env: Any = ""
    seed: Any = None
    reward: Any = 0.0
    stop_reason: Any = ""
    error: Any = None
    task: Any = None
    messages: Any = None
    final: Any = None
    metrics: Any = None
    seconds: Any = 0.0
    video: Any = None
    score_seconds: Any = 0.0


class Rollout(msgspec.Struct, frozen=True):
    """The figures of one rollout; `success` is what its env reported, `passed` what is decided over all of a run."""

    uid: str
    group: str
    env: str
    """The tag that it was drawn with."""
    name: str
    """Of the env itself: two tags may have the same one."""
    start: str
    """What it started from: env, seed and task; equal in rollouts of the same task and seed."""
    reward: float
    success: bool | None
    stop: str
    error: str
    turns: int
    invalid: int
    tokens: int
    seconds: float
    score_seconds: float
    version: int | None
    policy_seconds: list[float]
    """A reply from the record took as long as it did when it was sampled."""
    replayed: list[bool]
    env_seconds: list[float]
    env_work_seconds: list[float]
    """As long as the step itself where unknown."""
    passed: bool = False

    @property
    def result(self) -> RolloutResult:
        return RolloutResult(self.name, self.success, self.stop in OWN_ENDS, self.reward)

    @property
    def valid(self) -> bool:
        return not self.error and abs(self.reward) <= LARGEST_REWARD


_decoder = msgspec.json.Decoder(RolloutRecord)


def read_rollouts(file: TrajectoryFile, group: str, over: Container[str]) -> Iterator[tuple[Rollout, RolloutRecord]]:
    """The members of a group that are `over`: their figures, and their records."""
    members = {uid: line for uid, line in file.groups.get(group, {}).items() if uid in over}
    for uid in sorted(members, key=_member):
        line = members[uid]
        with located_at(line.place):
            record = _decoder.decode(file.read(line))
        yield _figures(record), record


def _member(uid: str) -> tuple[int, str]:
    number = uid.rpartition(".")[2]
    return (int(number), uid) if number.isdecimal() and number.isascii() else (0, uid)


def _figures(record: RolloutRecord) -> Rollout:
    turns = record.turns
    reward = as_number(record.reward)
    return Rollout(
        uid=record.uid,
        group=record.group,
        env=as_text(record.tag) or as_text(record.env),
        name=as_text(record.env),
        start=msgspec.json.encode([record.env, record.seed, record.task], order="sorted").decode(),
        reward=reward,
        success=_reported(turns),
        stop=as_text(record.stop_reason),
        error=_error_name(record.error),
        turns=len(turns),
        invalid=sum(turn.valid is False for turn in turns),
        tokens=sum(map(_tokens, turns)),
        seconds=_finite(record.seconds),
        score_seconds=max(_finite(record.score_seconds), 0.0),
        version=_oldest_version(turns),
        policy_seconds=[_finite(turn.policy_seconds) for turn in turns],
        replayed=[turn.replayed is True for turn in turns],
        env_seconds=[_finite(turn.env_seconds) for turn in turns],
        env_work_seconds=[_work(turn) for turn in turns],
    )


def _reported(turns: list[_TurnRecord]) -> bool | None:
    """As `successes.reported`."""
    reported = _info(turns[-1]).get("success") if turns else None
    if reported is None or any(turn.valid and _info(turn).get("success") is not None for turn in turns[::-1]):
        return None if reported is None else bool(reported)
    return None


def _info(turn: _TurnRecord) -> dict[str, Any]:
    """By name; empty if it is not a dict."""
    if not isinstance(turn.info, dict):
        return {}
    info = readable(turn.info)
    return info if isinstance(info, dict) else {"info": info}


def _finite(plain: Any) -> float:
    if type(plain) is float:
        return plain
    number = as_number(plain)
    return number if math.isfinite(number) else 0.0


def _oldest_version(turns: Iterable[_TurnRecord]) -> int | None:
    """As `Trajectory.version` says, of what is on file."""
    oldest = [
        turn.oldest_version if turn.oldest_version is not None else turn.version for turn in turns if _learns(turn)
    ]
    return min((int(_finite(version)) for version in oldest), default=None)


def _learns(turn: _TurnRecord) -> bool:
    return not turn.frozen or turn.oldest_version is not None


def _work(turn: _TurnRecord) -> float:
    took = _finite(turn.env_seconds)
    return took if turn.env_work_seconds is None else min(_finite(turn.env_work_seconds), took)


def _tokens(turn: _TurnRecord) -> int:
    ids = turn.token_ids
    if isinstance(ids, dict) and isinstance(shape := ids.get("shape"), list) and shape:
        return int(_finite(shape[0]))
    if isinstance(ids, list):
        return len(ids)
    return int(_finite(turn.usage.get("completion", 0))) if isinstance(turn.usage, dict) else 0


def _error_name(error: Any) -> str:
    return str(error.get(KIND, "error")) if isinstance(error, dict) else ("" if error is None else "error")


def shown(record: RolloutRecord) -> dict[str, Any]:
    """What a page shows of a rollout."""
    prompts = _prompts(record)
    return {
        "seed": as_text(record.seed),
        "task": as_text(record.task),
        "turns": [
            _shown_turn(turn, prompt, number)
            for number, (turn, prompt) in enumerate(zip(record.turns, prompts, strict=True))
        ],
        "final": _seen(record.final),
        "pictures": pictures_in(record.final),
        "metrics": as_text(record.metrics or None),
        "error": _shown_error(record.error),
        "video": shown_video(record.video),
    }


def _shown_turn(turn: _TurnRecord, prompt: list[dict[str, Any]], number: int) -> dict[str, Any]:
    info = _info(turn)
    parsed, reason = info.pop("actions", None), info.pop("invalid_reason", "")
    valid = turn.valid is not False
    return {
        "turn": number,
        "prompt": prompt,
        "hidden": int(_finite(turn.first_message)),
        "reasoning": as_text(turn.reasoning),
        "reply": as_text(turn.reply),
        "action": as_text(turn.action),
        "calls": as_text(turn.tool_calls or None),
        "valid": valid,
        "parsed": as_text(parsed) if valid else as_text(reason),
        "reward": _number_or_none(turn.reward),
        "finish": as_text(turn.finish_reason),
        "tokens": _tokens(turn),
        "version": int(_finite(turn.version)),
        "policy_seconds": _finite(turn.policy_seconds),
        "replayed": turn.replayed is True,
        "env_seconds": _finite(turn.env_seconds),
        "env_work_seconds": _work(turn),
        "info": as_text({key: value for key, value in info.items() if key != "action_is_valid"} or None),
    }


def _number_or_none(plain: Any) -> float | None:
    number = as_number(plain)
    return number if math.isfinite(number) else None


def _prompts(record: RolloutRecord) -> list[list[dict[str, Any]]]:
    """What was new to the policy in each turn: messages, or what the env showed."""
    messages = record.messages if isinstance(record.messages, list) else []
    prompts: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            prompts.append([])
        else:
            prompts[-1].append({"role": as_text(role), **_said(message)})
    if messages and len(prompts) == len(record.turns) + 1:
        return prompts[:-1]
    return [
        [{"role": "env", "text": _seen(turn.observation), "pictures": pictures_in(turn.observation)}]
        for turn in record.turns
    ]


def _said(message: Any) -> dict[str, Any]:
    content = message.get("content") if isinstance(message, dict) else message
    if not isinstance(content, list):
        return {"text": as_text(content), "pictures": pictures_in(content)}
    texts: list[str] = []
    pictures: list[str] = []
    for part in content:
        address = part.get("image_url") if isinstance(part, dict) else None
        url = address.get("url") if isinstance(address, dict) else None
        if isinstance(url, str):
            pictures.append(url)
        elif found := pictures_in(part):
            pictures.extend(found)
        else:
            texts.append(as_text(part.get("text", part) if isinstance(part, dict) else part))
    return {"text": "\n".join(texts), "pictures": pictures}


def _seen(observation: Any) -> str:
    """An observation's text, or else its value."""
    while isinstance(observation, dict) and observation.get(KIND) == "Remembered":
        observation = observation.get("observation")
    if isinstance(observation, dict) and observation.get(KIND) == "Observation":
        return as_text(observation.get("text"))
    return as_text(observation)


def _shown_error(error: Any) -> dict[str, str] | None:
    if error is None:
        return None
    record = readable(error)
    if not isinstance(record, dict):
        return {"name": "error", "message": as_text(error), "where": "", "notes": ""}
    args, notes = record.get("args") or [], record.get("notes") or []
    return {
        "name": _error_name(error),
        "message": "\n".join(map(str, args)),
        "where": as_text(record.get("where") or None),
        "notes": "\n".join(map(str, notes)),
    }
