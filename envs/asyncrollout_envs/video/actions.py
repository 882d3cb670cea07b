"""The actions of the env as texts: `<watch>a-b</watch>`, `<retrieve>a,b</retrieve>`, `<answer>..</answer>`."""

import re

import msgspec

TAGS = ("watch", "retrieve", "answer", "action")
LONGEST_ANSWER = 50  # characters of what is free-form, unless the solution has more; windows may take more
LONGEST_TEXT = 500
ROUNDING = 0.005
"""Seconds are told with two decimals: whoever repeats them means the same."""

_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s?s?"
_PAIR = re.compile(rf"{_NUMBER}\s?(?:-|\u2013|,|to)\s?{_NUMBER}", re.IGNORECASE)
_WINDOW = re.compile(rf"{_NUMBER}\s?(?:-|\u2013|to)\s?{_NUMBER}", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:[\s,;]|\band\b)*")
_MOST_WINDOWS = 20


class Action(msgspec.Struct, frozen=True):
    """One action; `start` and `end` are seconds of a watch, or indices of a retrieve."""

    kind: str
    content: str
    start: float = 0.0
    end: float = 0.0

    @property
    def text(self) -> str:
        return f"<{self.kind}>{self.content}</{self.kind}>"


class ActionError(ValueError):
    """Why a reply is none; the message begins with its kind, as in `retrieve_range_error: ...`."""


def read_action(kind: str, content: str) -> Action:
    """What a tag asks for, before it is known how long the video is."""
    content = content.strip()
    if kind in ("answer", "action"):
        if not content or len(content) > LONGEST_TEXT:
            raise ActionError(f"format_error: an answer has 1 to {LONGEST_TEXT} characters")
        return Action("answer", content)
    pair = _PAIR.fullmatch(content)
    if pair is None:
        form = "<watch>a-b</watch>, in seconds" if kind == "watch" else "<retrieve>a,b</retrieve>, with frame indices"
        raise ActionError(f"retrieve_format_error: write {form}, and not {content[:50]!r}")
    if kind == "retrieve" and "." in content:
        raise ActionError(f"retrieve_format_error: indices of frames are whole numbers, and not {content[:50]!r}")
    start, end = float(pair[1]), float(pair[2])
    if kind == "retrieve":
        return Action(kind, f"{int(start)},{int(end)}", start, end)
    return Action(kind, f"{start:.10g}-{end:.10g}", start, end)


def split_text(action: str) -> tuple[str, str]:
    """The tag and the content of an action's own text; neither, if it is none."""
    for kind in TAGS:
        opening, closing = f"<{kind}>", f"</{kind}>"
        if action.startswith(opening) and action.endswith(closing):
            return kind, action[len(opening) : -len(closing)]
    return "", action


def check_range(action: Action, last: float) -> None:
    """Seconds, or indices, are from 0 to `last`."""
    if not action.start <= action.end <= last + ROUNDING:
        what = "seconds" if action.kind == "watch" else "frame indices"
        raise ActionError(
            f"retrieve_range_error: {action.content} is not two {what} from 0 to {round(last, 2):g}, in this order"
        )


def read_windows(text: str, seconds: float) -> tuple[tuple[float, float], ...]:
    """The windows of time that an answer names, such as `4-8` or `2-4, 10-12`."""
    windows = tuple((float(a), float(b)) for a, b in _WINDOW.findall(text[:LONGEST_TEXT]))[:_MOST_WINDOWS]
    if not windows or not _BETWEEN.fullmatch(_WINDOW.sub("", text[:LONGEST_TEXT])):
        raise ActionError(f"format_error: answer with seconds, such as 4-8, or 2-4, 10-12, and not {text[:50]!r}")
    for start, end in windows:
        if not start < end <= seconds + ROUNDING:
            raise ActionError(
                f"format_error: {start:g}-{end:g} is not a window of seconds from 0 to {round(seconds, 2):g}"
            )
    return windows
