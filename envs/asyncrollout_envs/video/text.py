"""What makes the video env playable by a language model, and an expert that knows the annotations."""

from collections.abc import Hashable

from asyncrollout.errors import UsageError
from asyncrollout.images import IMAGE_MARK
from asyncrollout.text.replies import Projecting, find_answer
from asyncrollout.types import Observation, Parsed, TextOptions
from asyncrollout_envs.video.actions import TAGS, Action, ActionError, read_action, split_text
from asyncrollout_envs.video.env import Shown, VideoEnv
from asyncrollout_envs.video.questions import Question

_ANSWERS = {
    "multiple choice": "the letter of the right option",
    "numerical": "a number",
    "free-form": "a few words, {longest} characters at most",
    "moment": "the seconds in which it is to be seen, such as 4-8; several parts as 2-4, 10-12",
}
_EXAMPLES = {"watch": "0-5", "retrieve": "0,12", "answer": "your answer"}


class VideoText(Projecting[VideoEnv]):
    """The last `<watch>`, `<retrieve>` or `<answer>` of a reply is its one action; without a tag there is none."""

    default_action = ""
    """It does nothing but take a turn."""

    def __init__(self, env: VideoEnv, options: TextOptions) -> None:
        super().__init__(env, options)
        if options.strict and env.prompt_format == "no_think":
            raise UsageError(
                "video: strict=True wants replies with <think>, prompt_format='no_think' without: drop one"
            )

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        try:
            return Parsed((_said(reply, options).text,))
        except ActionError as error:
            return Parsed((), valid=False, reason=str(error))

    def parse(self, reply: str) -> Parsed:
        try:
            return Parsed((self._env.read(*split_text(_said(reply, self._options).text)).text,))
        except ActionError as error:
            return Parsed((), valid=False, reason=str(error))

    def describe(self, observation: Shown) -> Observation:
        if self._env.over:
            return Observation(text=observation["notice"] or "No turn is left. The episode is over.")
        env, question = self._env, self._env.question
        shown = zip(observation["indices"], observation["seconds"], strict=True)
        lines = [
            *([observation["notice"]] if observation["notice"] else []),
            f"Video {env.video}: {round(env.sampling.seconds, 2):g} s, sampled as frames 0 to {env.sampling.last}.",
            "You see these of them:",
            *(f"Frame {index} ({seconds:.2f} s): {IMAGE_MARK}" for index, seconds in shown),
            f"{'Find this moment' if question.kind == 'moment' else 'Question'}: {_unmarked(question.problem)}",
            *(f"{letter}. {_unmarked(option)}" for letter, option in question.options),
            f"An answer is {_ANSWERS[question.kind].format(longest=question.longest_answer)}.",
            f"Turn {env.turn + 1} of {env.rules.max_turns}: "
            + ("watch or answer." if env.turns_left > 1 else "answer."),
        ]
        return Observation(text="\n".join(lines), images=tuple(observation["frames"]))

    def system_prompt(self) -> str:
        rules = self._env.rules
        thinking = "" if self._env.prompt_format == "no_think" else "<think> your reasoning </think>"
        forms = "\n".join(f"{thinking}<{tag}>{inside}</{tag}>" for tag, inside in _EXAMPLES.items())
        return (
            f"You answer a question about a video, of which you see {rules.init_sample_num} frames at first. In each "
            f"turn you may look closer at a part of it, of which you then see up to {rules.max_turn_frames} frames, or "
            f"answer, which ends the episode. You have {rules.max_turns} turns; answer in the last one at the latest.\n"
            "<watch>a-b</watch> shows the part from second a until second b, <retrieve>a,b</retrieve> the part from "
            "frame a to frame b of those that the video is sampled as.\n"
            f"Always reply in one of these forms:\n{forms}"
        )

    def anchor(self) -> tuple[Hashable, ...]:
        return self._env.state_key()

    def tell(self, action: str) -> str:
        return action

    def solve(self) -> str:
        """Watch what is relevant, then answer; in the last turn, answer at once."""
        env, question = self._env, self._env.question
        if env.turn == 0 and env.turns_left > 1:
            start, end = (question.windows or ((0.0, env.sampling.seconds),))[0]
            last = min(end, env.sampling.seconds)
            if question.windows is None and env.relevant:
                first, final = min(env.relevant), max(env.relevant)
                action, thought = f"<retrieve>{first},{final}</retrieve>", "These frames matter."
            else:
                action, thought = f"<watch>{min(start, last):g}-{last:g}</watch>", "I look at this part closely."
        else:
            action, thought = f"<answer>{_known(question, env.sampling.seconds)}</answer>", "I have seen enough."
        return action if env.prompt_format == "no_think" else f"<think>{thought}</think>{action}"


def _said(reply: str, options: TextOptions) -> Action:
    found = find_answer(reply, strict=options.strict, tags=TAGS)
    if found.reason or not found.tagged:
        raise ActionError(f"format_error: {found.reason or 'no <watch>, <retrieve> or <answer> outside <think>'}")
    return read_action(found.tag, found.text)


def _known(question: Question, seconds: float) -> str:
    """The right answer; a guess, where the annotations withhold it."""
    if question.kind == "moment":
        windows = question.windows or ((0.0, seconds),)
        return ", ".join(f"{round(start, 3):.10g}-{round(end, 3):.10g}" for start, end in windows[:20])
    if question.solution is not None:
        return question.solution[: question.longest_answer]
    if question.kind == "multiple choice":
        return question.options[0][0]
    return "0"


def _unmarked(text: str) -> str:
    """Texts of others, without the mark that stands for a picture of ours."""
    return text.replace(IMAGE_MARK, "")
