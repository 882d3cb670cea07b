"""Replies in RAGEN's form: thoughts, then an answer of actions."""

import msgspec

from asyncrollout.text.replies import find_answer

_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")


class ReplyReader(msgspec.Struct, frozen=True):
    """Reads replies to prompts that end with `<think>`, or where a model does not think with `<answer>`."""

    separator: str
    most_actions: int
    thinks: bool

    def complete(self, text: str) -> str:
        """With the tag that the prompt ended with; models that read messages write it themselves."""
        tag = "<think>" if self.thinks else "<answer>"
        return text if tag in text else tag + text

    def read(self, reply: str) -> tuple[str, list[str]]:
        """The reply with just the actions that count, and these actions; only an answer in tags counts."""
        answer = find_answer(reply)
        if not answer.tagged:
            return reply, []
        parts = [part.strip() for part in _without_tags(answer.text).split(self.separator)]
        actions = [part for part in parts if part][: self.most_actions]
        stated = f"<answer>{f' {self.separator} '.join(actions)}</answer>"
        return (f"<think>{self.thought(reply)}</think>{stated}" if self.thinks else stated), actions

    def thought(self, reply: str) -> str:
        if not self.thinks:
            return ""
        return _without_tags(reply.rpartition("</think>")[0].rpartition("<think>")[2])


def _without_tags(text: str) -> str:
    for tag in _TAGS:
        text = text.replace(tag, "")
    return text.strip()
