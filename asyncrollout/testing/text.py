"""Points of a text interface, for envs that language models play."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncrollout.testing.cases import Case, against
from asyncrollout.testing.compare import same, shown
from asyncrollout.testing.direct import DirectPoints, walk_all
from asyncrollout.testing.points import Skipped, point
from asyncrollout.types import Observation, Parsed

HOSTILE = (
    "",
    " \n\t ",
    "x" * 1_000_000,
    "\x00",
    "answer\x00answer",
    "\ud800 \udfff",
    "\u202e\u05d0\u0645\u0631\u062d\u0628\u0627 \u4f60\u597d",
    "<answer>",
    "</answer>",
    "<think><answer></think>",
    "<answer></answer>",
    "<answer>" * 2_000 + "</answer>" * 2_000,
    "[" * 50_000,
    "(" * 50_000 + "1" + ")" * 50_000,
    '{"action": ' * 5_000,
    "||" * 5_000,
    "9" * 5_000,
    "-1",
    "-" + " " * 990 + "=",
    "\u0130" * 32_768,
    "nan",
    "\u00b2",
    "%s {0} {} \\1 $x",
)
"""What no language model should reply, and some do."""


def hostile_forms(reply: str) -> list[str]:
    """A good reply gone wrong in ways of its own."""
    digits = str.maketrans(dict.fromkeys("0123456789", "\u00b2"))
    long_numbers = str.maketrans(dict.fromkeys("0123456789", "9" * 5_000))
    return [
        reply[: len(reply) // 2],
        reply[::-1],
        reply + "\x00",
        reply * 1_000,
        reply.translate(digits),
        reply.translate(long_numbers),
    ]


@point("parse() never raises", "return Parsed([], valid=False, reason=...) for anything it cannot read")
async def parse_never_raises(case: Case) -> list[str]:
    played = [action for episode in case.episodes for action in episode.actions if isinstance(action, str)]
    async with _started(case) as direct:
        return [seen for reply in [*HOSTILE, *hostile_forms((played or [""])[0])] if (seen := _misread(direct, reply))]


def _misread(direct: DirectPoints, reply: str) -> str | None:
    try:
        parsed = direct.text.parse(reply)
    except Exception as error:  # noqa: BLE001 (of any kind: it is the finding)
        return f"for {shown(reply)} it raised {type(error).__name__}: {shown(str(error))}"
    if not isinstance(parsed, Parsed):
        return f"for {shown(reply)} it returned {shown(parsed)}, not a Parsed"
    if not parsed.valid and not parsed.reason:
        return f"for {shown(reply)} it gave no reason: Parsed(valid=False) needs one"
    return None


@point(
    "describe() and system_prompt() give text", "return a str, or from describe() an Observation(text=..., images=...)"
)
async def describes(case: Case) -> list[str]:
    seen: list[str] = []

    def look(direct: DirectPoints, place: str, observation: Any) -> None:
        described = direct.text.describe(observation)
        text = described.text if isinstance(described, Observation) else described
        if not isinstance(text, str):
            seen.append(f"{place}: describe() gave {shown(described)}")

    async with _started(case) as direct:
        prompt = direct.text.system_prompt()
    if not isinstance(prompt, str):
        seen.append(f"system_prompt() gave {shown(prompt)}")
    await walk_all(case, look)
    return seen[:2]


@point(
    "anchor() is hashable, and equal in equal states", "make it of str, numbers and tuples that hold the whole state"
)
async def anchors(case: Case) -> list[str]:
    async with _started(case) as direct:
        if not hasattr(direct.text, "anchor"):
            raise Skipped("its text interface has no anchor()")
    rounds: list[list[tuple[str, Any]]] = []
    seen: list[str] = []

    def look(direct: DirectPoints, place: str, _: Any) -> None:
        anchor = direct.text.anchor()
        try:
            hash(anchor)
        except TypeError as error:
            seen.append(f"{place}: {shown(anchor)}: {error}")
        rounds[-1].append((place, anchor))

    for _ in range(2):
        rounds.append([])
        await walk_all(case, look)
    for (place, first), (_, second) in zip(*rounds, strict=False):
        if first != second:
            seen.append(f"{place}: it was {shown(first)}, and in a second env {shown(second)}")
    return seen[:1]


@point("an invalid reply changes nothing", "let parse() and describe() only read, and change state in step() alone")
async def invalid_changes_nothing(case: Case) -> list[str]:
    async with _started(case) as direct:
        invalid = next((reply for reply in HOSTILE if not direct.text.parse(reply).valid), None)
    if invalid is None:
        raise Skipped("parse() takes every reply for valid")
    episode = case.episodes[0]
    seen = []
    for backend in case.pools:
        async with case.open(backend) as env:
            begun = await case.play(env, episode.seed, episode.actions[: episode.half])
            if begun[-1].done:
                continue
            after = await env.step(invalid)
            if after.done or not same(after.observation, begun[-1].observation):
                seen.append(f"{backend}: after {shown(invalid)} it showed {shown(after)}, before {shown(begun[-1])}")
            outcomes = await case.resume_at(env, episode.actions[episode.half :], begun)
            seen += [f"{backend}, after {shown(invalid)}, {text}" for text in against(episode, outcomes)]
    return seen


@point("solve() gives a reply that parse() takes for valid", "let solve() write what the system prompt asks for")
async def solver(case: Case) -> list[str]:
    async with _started(case) as direct:
        if not hasattr(direct.text, "solve"):
            raise Skipped("its text interface has no solve()")
    seen: list[str] = []

    def look(direct: DirectPoints, place: str, observation: Any) -> None:
        direct.text.describe(observation)
        reply = direct.text.solve()
        if not isinstance(reply, str) or not direct.text.parse(reply).valid:
            seen.append(f"{place}: {shown(reply)}")

    await walk_all(case, look)
    return seen[:1]


@asynccontextmanager
async def _started(case: Case) -> AsyncIterator[DirectPoints]:
    if not case.has_text:
        raise Skipped("it is opened without a text interface")
    async with DirectPoints(case) as direct:
        observation, _ = await direct.reset(case.episodes[0].seed)
        direct.text.describe(observation)
        yield direct
