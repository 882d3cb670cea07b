"""What is asked about a video: rows of annotation files, of both schemas, as questions."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from asyncrollout.text.stated import find_led, undress
from asyncrollout.validation import did_you_mean
from asyncrollout_envs.video.actions import LONGEST_ANSWER, LONGEST_TEXT, ActionError, read_windows

Kind = Literal["multiple choice", "numerical", "free-form", "moment"]
Window = tuple[float, float]
Windows = tuple[Window, ...]

_KINDS: dict[str, Kind] = {
    "multiple choice": "multiple choice",
    "numerical": "numerical",
    "regression": "numerical",
    "free-form": "free-form",
    "ocr": "free-form",
}
_LETTERED = re.compile(r"\s*\(?([A-Za-z])[.):]\s*(.*)", re.DOTALL)
_NAMED = re.compile(r"(?:option|choice)\s+\(?([A-Za-z])", re.IGNORECASE)
_TAGGED = re.compile(r"\s*<answer>(.*)</answer>\s*", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,18})?(?:\.[0-9]{1,18})?")
_DRESSING = " \t\r\n.,;:!\"'`*_()[]"


class Question(msgspec.Struct, frozen=True):
    """One episode's task. `windows` are relevant seconds, `frames` relevant indices of sampled frames, where known.

    A window is half open: a frame at its end is not in it. `seconds` is how long the video is, as far as its row says.
    """

    name: str
    files: tuple[str, ...]
    problem: str
    kind: Kind
    options: tuple[tuple[str, str], ...] = ()
    solution: str | None = None
    windows: Windows | None = None
    frames: tuple[int, ...] | None = None
    seconds: float = 0.0

    @property
    def longest_answer(self) -> int:
        """In characters: in steps, so that it does not tell how long the solution is."""
        steps = -(-len(self.solution or "") // LONGEST_ANSWER)
        return min(max(1, steps) * LONGEST_ANSWER, LONGEST_TEXT)

    def cut(self, seconds: float) -> "Question":
        """The question about a file that ends at this time, some milliseconds earlier than its row says."""
        if self.windows is None:
            return self
        windows = tuple((start, min(end, seconds)) for start, end in self.windows if start < seconds)
        return msgspec.structs.replace(self, windows=windows)


class Row(msgspec.Struct):
    """A row of QVHighlights (`vid`, `query`), or a question about a video (`path` or `vid`, `problem`)."""

    vid: str | None = None
    path: str | None = None
    qid: int | str | None = None
    query: str | None = None
    problem: str | None = None
    problem_type: str | None = None
    problem_id: int | str | None = None
    options: list[str] | None = None
    solution: str | int | float | None = None
    duration: Any = None
    relevant_windows: list[tuple[float, float]] | None = None
    relevant_sample_frames: list[int] | None = None

    def read(self) -> tuple[str, Question]:
        """The question and what it is about: all questions about one video go to the same split."""
        if self.path is None and self.vid is None:
            raise ValueError("it has neither `path` nor `vid`, so that its video is not known")
        video = self.path or self.vid or ""
        text = (self.problem or self.query or "").strip()
        if not text:
            raise ValueError("it has neither `problem` nor `query`")
        kind: Kind = "moment" if self.problem is None else _kind(self.problem_type)
        options = _lettered(self.options or []) if kind == "multiple choice" else ()
        name = next((str(one) for one in (self.qid, self.problem_id) if one is not None), "")
        question = Question(
            name=name,
            files=(self.path,) if self.path is not None else (f"videos/{self.vid}.mp4", f"{self.vid}.mp4"),
            problem=text,
            kind=kind,
            options=options,
            solution=_solution(kind, options, self.solution),
            windows=_windows(self.relevant_windows),
            frames=None if self.relevant_sample_frames is None else tuple(dict.fromkeys(self.relevant_sample_frames)),
            seconds=self._seconds(),
        )
        return video, question

    def _seconds(self) -> float:
        """How long the video is at least, as far as the row says."""
        told = float(self.duration) if isinstance(self.duration, int | float) else 0.0
        return max([told, *(end for _, end in self.relevant_windows or ())])


def read_answer(question: Question, text: str, seconds: float) -> str:
    """An answer in the one form that is compared; `ActionError` if the question cannot be answered with it.

    Windows may reach as far as the row says that the video does. "The answer is B" is B.
    """
    text = text.strip()
    led = find_led(text)
    if led is None or led == text:
        return _read_as_is(question, text, seconds)
    try:
        return _read_as_is(question, led, seconds)
    except ActionError:
        return _read_as_is(question, text, seconds)


def _read_as_is(question: Question, text: str, seconds: float) -> str:
    if question.kind == "moment":
        windows = read_windows(undress(text), max(seconds, question.seconds))
        return ", ".join(f"{start:.10g}-{end:.10g}" for start, end in windows)
    if question.kind == "multiple choice":
        letter = _chosen(question.options, text) or _chosen(question.options, undress(text))
        if letter is None:
            letters = ", ".join(letter for letter, _ in question.options)
            raise ActionError(f"format_error: answer with the letter of one option ({letters}), and not {text[:50]!r}")
        return letter
    if question.kind == "numerical":
        plain = undress(text).strip(" \t\r\n$%*`").replace("\N{MINUS SIGN}", "-")
        if not any(map(str.isdigit, plain)) or not _NUMBER.fullmatch(plain):
            raise ActionError(f"format_error: answer with a number, and not {text[:50]!r}")
        return plain.replace(",", "")
    if len(text) > question.longest_answer:
        raise ActionError(f"format_error: answer with at most {question.longest_answer} characters")
    return text


def _kind(given: str | None) -> Kind:
    kind = _KINDS.get((given or "").strip().lower().replace("_", " "))
    if kind is None:
        raise ValueError(f"`problem_type` {given!r} is not known{did_you_mean(given or '', [*_KINDS])}")
    return kind


def _lettered(options: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Each option with its letter: its own, if all have one, or the letter of its place."""
    if not 2 <= len(options) <= 26:
        raise ValueError(f"`options` of a multiple choice are 2 to 26, and not {len(options)}")
    own = [_LETTERED.fullmatch(option) for option in options]
    letters = [match[1].upper() for match in own if match]
    if len({*letters}) == len(options):
        return tuple((match[1].upper(), match[2].strip()) for match in own if match)
    return tuple((chr(ord("A") + place), option.strip()) for place, option in enumerate(options))


def _chosen(options: Sequence[tuple[str, str]], text: str) -> str | None:
    """The letter of the option that is meant: a letter is one, even if another option's text is the same letter."""
    plain = text.strip(_DRESSING)
    lettered = _LETTERED.fullmatch(text)
    named = _NAMED.fullmatch(plain)
    ways = (
        [letter for letter, _ in options if plain.upper() == letter],
        [letter for letter, option in options if text == option],
        [letter for letter, option in options if same_text(text, option)],
        [
            letter
            for letter, option in options
            if lettered and lettered[1].upper() == letter and (not lettered[2] or same_text(lettered[2], option))
        ],
        [letter for letter, _ in options if named and named[1].upper() == letter],
    )
    said = next(filter(None, ways), [])
    return said[0] if len(said) == 1 else None


def same_text(text: str, option: str) -> bool:
    """Without case and dressing; of what is dressing alone, such as "*", nothing is taken off."""
    return (text.strip(_DRESSING) or text).casefold() == (option.strip(_DRESSING) or option).casefold()


def _solution(kind: Kind, options: Sequence[tuple[str, str]], given: Any) -> str | None:
    if given is None or kind == "moment":
        return None
    text = str(given)
    tagged = _TAGGED.fullmatch(text)
    text = (tagged[1] if tagged else text).strip()
    if kind == "free-form":
        return text or None
    try:
        return read_answer(Question("", (), "", kind, tuple(options)), text, 0.0)
    except ActionError as error:
        raise ValueError(f"`solution` {text[:50]!r}: {error}") from None


def _windows(given: Sequence[tuple[float, float]] | None) -> Windows | None:
    for start, end in given or ():
        if not 0 <= start < end < float("inf"):
            raise ValueError(f"`relevant_windows`: [{start:g}, {end:g}] is not a time window")
    return None if given is None else tuple((float(start), float(end)) for start, end in given)
