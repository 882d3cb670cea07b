"""Histories as messages: a conversation turn by turn, or one message that tells the turns before the present one."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from asyncrollout.dropin.ragen.alfworld import write_turn
from asyncrollout.dropin.ragen.prompts import PromptTemplates
from asyncrollout.dropin.ragen.states import INVALID_REASON, NO_ACTION
from asyncrollout.dropin.ragen.tokens import Message

logger = logging.getLogger(__name__)

Turn = Mapping[str, Any]


class ConversationWriter(msgspec.Struct, frozen=True):
    """Writes messages with these texts; `thinks` says whether replies begin with thoughts."""

    templates: PromptTemplates
    thinks: bool = True

    @property
    def prefill(self) -> str:
        """How the model's reply begins: it only continues."""
        return "<think>" if self.thinks else "<answer>"

    def write(self, rules: str, history: Sequence[Turn], start: int, max_tokens: int | None) -> list[Message]:
        """The turns from `start` on, as a conversation."""
        texts = self.templates
        messages = [_message("system", texts.system.format(rules=rules))]
        said = texts.opening.format(rules=rules)
        for index in range(start, len(history)):
            item = history[index]
            said += texts.turn.format(turn=index + 1, body=self._body(item, max_tokens))
            if "llm_response" in item:
                messages += [_message("user", said), _message("assistant", item["llm_response"])]
                said = texts.reward.format(reward=item.get("reward", 0.0))
            else:
                messages.append(_message("user", said))
        return messages

    def write_single(self, rules: str, history: Sequence[Turn], start: int, max_tokens: int | None) -> list[Message]:
        """The last turn, and in the same message the turns from `start` on; then the reply, if there is one."""
        return self._single(rules, history, self._told(history, start, max_tokens))

    def write_alfworld(self, rules: str, history: Sequence[Turn], start: int, max_tokens: int | None) -> list[Message]:
        """The same for ALFWorld, in lines."""
        warns = bool(history[-1].get(NO_ACTION))
        form, length = self._form(), self._length(max_tokens)
        turn = write_turn(self.templates.alfworld, history, start, warns=warns, form=form, length=length)
        return self._single(rules, history, turn)

    def _single(self, rules: str, history: Sequence[Turn], turn: str) -> list[Message]:
        texts = self.templates
        messages = [
            _message("system", texts.system.format(rules=rules)),
            _message("user", texts.opening.format(rules=rules) + turn),
        ]
        reply = history[-1].get("llm_response")
        return messages if reply is None else [*messages, _message("assistant", reply)]

    def _told(self, history: Sequence[Turn], start: int, max_tokens: int | None) -> str:
        texts, last = self.templates, len(history) - 1
        body, said = self._body(history[last], max_tokens), ""
        if start < last:
            said += texts.summary.format(completed=last, shown=last - start)
            said += "".join(
                texts.past.format(
                    turn=index + 1, state=turn["state"], reply=turn["llm_response"], reward=turn.get("reward", 0.0)
                )
                for index, turn in enumerate(history[:last])
                if index >= start
            )
            said += texts.current.format(turn=last + 1, body=body)
        else:
            said += texts.alone.format(turn=last + 1, body=body)
        return said

    def _body(self, item: Turn, max_tokens: int | None) -> str:
        texts, reason = self.templates, item.get(INVALID_REASON)
        warning = texts.warning if item.get(NO_ACTION) else ""
        return texts.body.format(
            state=item["state"],
            warning=warning if reason is None else texts.invalid.format(reason=reason),
            actions_left=item["actions_left"],
            format=self._form(),
            length=self._length(max_tokens),
        )

    def _form(self) -> str:
        return self.templates.think_format if self.thinks else self.templates.answer_format

    def _length(self, max_tokens: int | None) -> str:
        return "" if max_tokens is None else self.templates.length.format(max_tokens=max_tokens)


def shorten(
    write: Callable[[int], list[Message]], starts: range, fits: Callable[[list[Message]], bool]
) -> list[Message]:
    """The messages from the first of these turns on with which they are short enough."""
    for start in starts:
        messages = write(start)
        if fits(messages):
            return messages
    logger.warning("a single turn is longer than actor_rollout_ref.rollout.max_model_len")
    return messages


def drop_oldest(messages: list[Message]) -> list[Message]:
    """Without the oldest turn: what the user said first, and the reply; the system's message and the last turn stay."""
    return messages if len(messages) <= 3 else [messages[0], *messages[3:]]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
