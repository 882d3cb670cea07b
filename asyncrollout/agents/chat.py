"""An agent that converses: what a language model is shown each turn, and how its tokens join up."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import zip_longest
from typing import Any, ClassVar, Literal

import anyio.to_thread
import msgspec
import numpy as np

from asyncrollout import validation
from asyncrollout.agents.templates import TEMPLATES, Template
from asyncrollout.agents.token_history import TokenSequence, unsampled
from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.images import IMAGE_MARK, data_url, raw_size
from asyncrollout.logs import get_logger
from asyncrollout.protocols import Policy, ask_policy
from asyncrollout.seeding import sampling_seed
from asyncrollout.trajectories import Move
from asyncrollout.types import Generation, Observation, Outcome, Request, Sampling
from asyncrollout.validation import did_you_mean

log = get_logger(__name__)

Message = dict[str, Any]
Encode = Callable[[list[Message], bool], Sequence[int] | Awaitable[Sequence[int]]]

_MOST_STOPS = 3
_LARGE_PICTURE = 50_000  # bytes
_SERVERS_OWN = Sampling()


@dataclass(frozen=True)
class ChatAgent:
    """Plays text envs with a language model.

    `history` is how many turns before the present one the model sees; None is the whole conversation. `template` is
    "plain", "bare" (without the reason why the last reply was invalid), "ragen", or a function (turn, text, outcome) ->
    text. `system_prompt` replaces the env's own.

    With `encode` it speaks in tokens, so that each prompt extends the one before exactly: `encode(messages, is_start)`
    gives the tokens of messages that are new since the last reply, up to where the model continues. The policy must
    take `Request.prompt_ids`. `end_ids` are the tokens that end a message: where a reply lacks them, because it was cut
    off or stopped at a text, the next prompt adds them. Without `end_ids`, and after a reply without token ids,
    `encode` is given all messages again. Without `encode`, the token ids are those of the server, and where a prompt
    does not extend the one before, the turn says so (`joined` is false) and begins a sample of its own.

    Each turn's `sampling.seed` is drawn from the rollout's, unless `sampling` has one; a server that knows no seeds
    needs `seeded=False`.
    """

    asks_once: ClassVar[bool] = True
    only_appends: ClassVar[bool] = True  # to its conversation; not said of subclasses

    policy: Policy
    _: KW_ONLY
    history: int | None = None
    template: Literal["plain", "bare", "ragen"] | Template = "plain"
    system_prompt: str | None = None
    sampling: Sampling = _SERVERS_OWN
    seeded: bool = True
    encode: Encode | None = None
    end_ids: Sequence[int] = ()
    _reported: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not hasattr(self.policy, "generate"):
            raise UsageError(
                f"ChatAgent: {self.policy!r:.100} is not a policy: it has no generate(){_hint(self.policy)}"
            )
        if isinstance(self.policy, type):
            raise UsageError(
                f"ChatAgent: {self.policy.__name__} is a class, not a policy: write {self.policy.__name__}(...)"
            )
        if isinstance(self.template, str) and self.template not in TEMPLATES:
            raise UsageError(
                f"ChatAgent: template={self.template!r} is not valid{did_you_mean(self.template, [*TEMPLATES])}"
            )
        if self.history is not None and (isinstance(self.history, bool) or self.history < 0):
            raise UsageError(f"ChatAgent: history={self.history!r} is neither None nor a number from 0")
        if self.encode is not None and not callable(self.encode):
            raise UsageError(f"ChatAgent: encode={self.encode!r:.100} is not a function of messages and is_start")
        object.__setattr__(self, "end_ids", _read_ids(self.end_ids))
        if self.end_ids and self.encode is None:
            raise UsageError("ChatAgent: end_ids=[...] are for encode=...: without it the server writes the prompts")

    def open(self, session: str, seed: int) -> "Conversation":
        return Conversation(self, session, seed)

    def report(self, event: str, **fields: Any) -> None:
        """Log a warning, once for all episodes."""
        if event not in self._reported:
            self._reported.add(event)
            log.warning(event, **fields)


class Conversation:
    """One episode of a `ChatAgent`."""

    def __init__(self, agent: ChatAgent, session: str, seed: int) -> None:
        self.messages: list[Message] = []
        self._agent = agent
        self._template = TEMPLATES[agent.template] if isinstance(agent.template, str) else agent.template
        self._session = session
        self._seed = seed
        self._turn = 0
        self._first = 0
        self._continues = False
        self._end: Sequence[int] = ()
        self._tokens = TokenSequence()

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        new, observation = await self._describe(outcome)
        known = len(self.messages)
        self.messages += new
        try:
            return await self._reply(outcome, new, observation, tokens_left)
        except BaseException:
            del self.messages[known:]  # nobody has answered them
            raise

    async def _reply(self, outcome: Outcome, new: list[Message], observation: Any, tokens_left: int | None) -> Move:
        first = self._window(self.messages)
        has_system = self.messages[0]["role"] == "system"
        shown = [*self.messages[:has_system], *self.messages[first:]] if first else self.messages.copy()
        request = Request(
            shown,
            await self._encoded(shown, new, first),
            self._sampling(tokens_left),
            self._session,
            self._turn,
            data=outcome.observation,
            expert=outcome.info.get("expert"),
            tokens_left=tokens_left,
        )
        generation = await self._ask(request)
        self.messages.append(_said(generation))
        self._first = first
        self._turn += 1
        prompt_ids = generation.prompt_ids if request.prompt_ids is None else request.prompt_ids
        self._continues = False
        if prompt_ids is None or generation.token_ids is None:
            if self._agent.encode is not None:
                hint = "prompts are encoded from the start again; with OpenAIPolicy, kind= is 'vllm' or 'sglang'"
                self._agent.report("reply_without_token_ids", session=self._session, hint=hint)
            return Move(generation.text, generation, observation, first_message=first)
        if self._agent.encode is not None:
            is_cut_off = generation.stopped_early or generation.finish_reason == "length"
            has_end = len(generation.token_ids) > 0 and not is_cut_off
            self._continues = has_end or len(self._agent.end_ids) > 0  # without its end nothing can follow
            self._end = unsampled(self._agent.end_ids, generation.token_ids)
        part, joined = self._tokens.add_turn(prompt_ids, generation.token_ids)
        return Move(generation.text, generation, observation, part, joined, first)

    async def _describe(self, outcome: Outcome) -> tuple[list[Message], Any]:
        """The messages that are new, and what is recorded of the observation: pictures are in the messages."""
        observation = outcome.observation
        seen = Observation(observation) if isinstance(observation, str) else observation
        if not isinstance(seen, Observation):
            raise UsageError(
                f"ChatAgent plays text envs, and was shown a {type(observation).__name__}: open the env with text=True "
                f"(in Rollouts: env_kwargs={{'text': True}})"
            )
        content: Any = self._template(self._turn, seen.text, outcome)
        if seen.images:
            urls = [await _encoded_picture(image) for image in seen.images]
            content = _illustrated(content, [{"type": "image_url", "image_url": {"url": url}} for url in urls])
            key = msgspec.structs.replace(seen, images=tuple(urls)).key  # of what is compressed: quicker to digest
            observation = msgspec.structs.replace(seen, images=(), anchor=key)
        shown: Message = {"role": "user", "content": content}
        prompt = self._agent.system_prompt
        if prompt is None:
            prompt = outcome.info.get("system_prompt")
        if self._turn or not prompt:
            return [shown], observation
        return [{"role": "system", "content": prompt}, shown], observation

    def _window(self, messages: list[Message]) -> int:
        """The first message that is shown, beside the system's: 0 if all are."""
        history = self._agent.history
        if history is None or self._turn <= history:
            return 0
        return len(messages) - 1 - 2 * history

    async def _encoded(self, shown: list[Message], new: list[Message], first: int) -> list[int] | None:
        encode = self._agent.encode
        if encode is None:
            return None
        is_start = not self._continues or first != self._first
        tokens = encode(shown if is_start else new, is_start)
        if inspect.isawaitable(tokens):
            tokens = await tokens
        return list(tokens) if is_start else self._tokens.extended_by([*self._end, *tokens])

    def _sampling(self, tokens_left: int | None) -> Sampling:
        sampling = self._agent.sampling
        changes: dict[str, Any] = {}
        if tokens_left is not None and (sampling.max_tokens is None or tokens_left < sampling.max_tokens):
            changes["max_tokens"] = tokens_left
        if self._agent.seeded and sampling.seed is None:
            changes["seed"] = sampling_seed(self._seed, self._turn)
        return msgspec.structs.replace(sampling, **changes) if changes else sampling

    async def _ask(self, request: Request) -> Generation:
        """A whole reply: one that a server aborts, as for new weights, is asked for again."""
        for _ in range(_MOST_STOPS):
            generation = await ask_policy(self._agent.policy, request)
            if generation.finish_reason != "abort":
                return _checked(generation)
        raise ProviderError(f"the server aborted the reply {_MOST_STOPS} times")


def _hint(policy: Any) -> str:
    return "; for a function of the request, give ScriptedPolicy(function)" if callable(policy) else ""


def _checked(generation: Generation) -> Generation:
    ids, logprobs = generation.token_ids, generation.logprobs
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        raise ProviderError(f"the policy gave {len(ids)} token ids and {len(logprobs)} logprobs")
    return generation


def _read_ids(given: Any) -> tuple[int, ...]:
    is_list = given.ndim == 1 if isinstance(given, np.ndarray) else isinstance(given, Sequence)
    if not is_list or isinstance(given, str | bytes):
        raise UsageError(f"ChatAgent: end_ids={given!r:.100} is not a list of token ids")
    return tuple(validation.check_int("ChatAgent: one of end_ids", token, 0) for token in given)


async def _encoded_picture(picture: Any) -> str:
    """Large pictures take long enough to be noticed by all other rollouts, but not in a thread."""
    if raw_size(picture) < _LARGE_PICTURE:
        return data_url(picture)
    return await anyio.to_thread.run_sync(data_url, picture)


def _illustrated(text: str, pictures: list[Message]) -> list[Message]:
    """A text with its pictures: each where the text has a mark for it, or all at the end."""
    between = text.split(IMAGE_MARK)
    if len(between) != len(pictures) + 1:
        between = [text]
    parts = []
    for said, picture in zip_longest(between, pictures):
        parts += [{"type": "text", "text": said}] if said else []
        parts += [picture] if picture else []
    return parts


def _said(generation: Generation) -> Message:
    message: Message = {"role": "assistant", "content": generation.text}
    return {**message, "tool_calls": generation.tool_calls} if generation.tool_calls else message
