"""The video env: actions in seconds and in frames, rewards, the end of an episode, and what a model is shown."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncrollout import ChatAgent, EnvPool, Generation, Request, TextOptions, UsageError, run_rollout
from asyncrollout_envs.video import VideoEnv, VideoText
from asyncrollout_envs.video.actions import ActionError
from asyncrollout_envs.video.frames import Sampling
from asyncrollout_envs.video.questions import Question, read_answer
from asyncrollout_envs.video.rewards import frame_iou, gain, score_answer, window_iou

CHOICE, WAY, COUNT, WORD = range(4)
"""The first clip's questions, by their place in the split: two multiple choices, a number, a word."""


def make(task: int = CHOICE, **kwargs: Any) -> tuple[VideoEnv, VideoText]:
    """An env at the start of an episode."""
    env = VideoEnv(**kwargs)
    env.reset(seed=0, options={"task": task})
    return env, VideoText(env, TextOptions())


def play(env: VideoEnv, text: VideoText, reply: str) -> tuple[float, dict[str, Any]]:
    parsed = text.parse(reply)
    assert parsed.valid, parsed.reason
    _, reward, _, _, info = env.step(parsed.actions[0])
    return reward, info


def wrong(question: Question) -> str:
    return next(letter for letter, _ in question.options if letter != question.solution)


@pytest.mark.parametrize(
    ("reply", "frames"),
    [
        ("I need to watch the video. <watch>0-5</watch>", (0, 19)),
        ("Let me analyze this scene. <watch>0-10</watch>", (0, 39)),
        ("<think>The start.</think><retrieve>0,20</retrieve>", (0, 20)),
        ("<watch> 2.5 s to 4 s </watch>", (10, 15)),
        ("<watch>3\u20133</watch>", (12, 12)),
        ("<watch>15-16.004</watch>", (60, 63)),  # as much more as rounding may make it
        ("<watch>3.1-3.2</watch>", (12, 12)),  # between two frames: the one on the screen
        ("<Watch>0-12</watch>", (0, 47)),
        ("<answer>A</answer> No, first <watch>4-6</watch>", (16, 23)),
    ],
)
def test_a_range_is_watched_in_seconds_or_frames(reply: str, frames: tuple[int, int]) -> None:
    env, text = make()
    _, info = play(env, text, reply)
    assert (info["frame_indices"][0], info["frame_indices"][-1]) == frames
    assert len(info["frame_indices"]) == min(8, frames[1] - frames[0] + 1)


def test_seconds_and_frames_show_the_same() -> None:
    env, text = make()
    seen = []
    for reply in ("<watch>1-8</watch>", "<retrieve>4,31</retrieve>"):
        env.reset(seed=0)
        shown, *_ = env.step(text.parse(reply).actions[0])
        seen.append(shown)
    assert seen[0]["indices"] == seen[1]["indices"]
    assert np.array_equal(seen[0]["frames"], seen[1]["frames"])


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("<watch>5-3</watch>", "retrieve_range_error"),
        ("<watch>0-17</watch>", "retrieve_range_error"),  # the clip has 16 seconds
        ("<watch>-1-3</watch>", "retrieve_format_error"),
        ("<retrieve>0,64</retrieve>", "retrieve_range_error"),
        ("<retrieve>9,8</retrieve>", "retrieve_range_error"),
        ("<retrieve>0.5,8</retrieve>", "retrieve_format_error"),
        ("<watch>start-end</watch>", "retrieve_format_error"),
        ("<answer>E</answer>", "format_error"),
        ("<answer>A or B</answer>", "format_error"),
        ("The answer is A.", "format_error"),
        ("<think><watch>0-5</watch></think>", "format_error"),
    ],
)
async def test_what_cannot_be_done_changes_nothing(reply: str, kind: str) -> None:
    async with EnvPool(backend="inline") as pool, pool.open("video") as env:
        first = await env.reset(seed=CHOICE)
        after = await env.step(reply)
        assert after.info["invalid_reason"].startswith(f"{kind}: ")
        assert after.reward == -0.1
        assert after.observation.text == first.observation.text
        assert not after.done
        assert await env.call("compute_reward") == 0
        assert (await env.step("<watch>0-5</watch>")).info["turn"] == 1


EDGES = st.tuples(st.integers(0, 39), st.integers(-1, 1))
"""A place among the frames, and hundredths of a second from it."""


@example(fps=24, frames=[0, 1, 183], edges=((0, 0), (2, 1)))  # 7.625 s is read as 7.62
@given(
    fps=st.sampled_from([1, 2, 3, 4, 5, 7, 24, 25, 29.97, 30]),
    frames=st.lists(st.integers(0, 500), min_size=1, max_size=40, unique=True).map(sorted),
    edges=st.tuples(EDGES, EDGES),
)
def test_a_window_has_the_frames_from_its_start_until_before_its_end(
    fps: float, frames: list[int], edges: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """A reference: the times as a model is told them, in hundredths of a second."""
    sampling = Sampling(tuple(frames), fps, (frames[-1] + 1) / fps)
    told = [round(100 * float(f"{sampling.time(index):.2f}")) for index in range(len(frames))]
    start, end = sorted(max(0, told[place % len(told)] + off) for place, off in edges)
    inside = [index for index, time in enumerate(told) if start <= time < end]
    shown = [max((index for index, time in enumerate(told) if time <= start), default=0)]
    first, last = sampling.between(start / 100, end / 100)
    assert [*range(first, last + 1)] == (inside or shown)


@given(start=st.integers(0, 15), length=st.integers(1, 16))
def test_watching_a_window_shows_what_is_relevant_in_it(start: int, length: int) -> None:
    sampling = Sampling(tuple(range(64)), 4, 16.0)
    window = (float(start), float(min(start + length, 16)))
    first, last = sampling.between(*window)
    assert tuple(range(first, last + 1)) == sampling.relevant(question("moment", windows=(window,)))


def test_strict_wants_a_thought_and_one_tag() -> None:
    env, _ = make()
    text = VideoText(env, TextOptions(strict=True))
    assert text.parse("<think>x</think><watch>0-5</watch>").valid
    assert text.parse("<think>x</think> <answer>A</answer>").valid
    for reply in ("<watch>0-5</watch>", "x <think>x</think><watch>0-5</watch>", "<think>x</think><action>A</action>"):
        assert "<think>..</think><watch>..</watch>" in text.parse(reply).reason
    both = "<think>x</think><watch>0-5</watch><answer>A</answer>"
    assert not text.parse(both).valid
    with pytest.raises(UsageError, match="no_think"):
        VideoText(VideoEnv(prompt_format="no_think"), TextOptions(strict=True))


def test_watching_earns_by_overlap_and_answering_by_turn() -> None:
    env, text = make()
    assert env.relevant is not None
    relevant = f"<retrieve>{env.relevant[0]},{env.relevant[-1]}</retrieve>"
    elsewhere = "<watch>0-1</watch>"
    reward, info = play(env, text, relevant)
    assert reward == pytest.approx(0.5)
    assert info["iou"] == frame_iou(info["frame_indices"], env.relevant)
    reward, info = play(env, text, elsewhere)  # less overlap than before costs nothing, and earns nothing
    assert reward == 0
    reward, info = play(env, text, f"<answer>{env.question.solution}</answer>")
    assert info["rewards"] == {"format": 0.1, "answer": pytest.approx(0.8)}
    assert info["success"]
    assert env.compute_reward() == pytest.approx(0.5 + 0.1 + 0.8)
    env.reset(seed=0)
    assert env.compute_reward() == 0
    assert play(env, text, f"<answer>{wrong(env.question)}</answer>")[0] == pytest.approx(0.1)


@pytest.mark.parametrize(("per", "idle"), [("episode", 0.0), ("turn", 0.9)])
def test_idle_looks_earn_nothing_unless_every_turn_is_paid(per: str, idle: float) -> None:
    env, text = make(max_turns=9, format_reward_per=per)
    while env.turns_left:
        play(env, text, "<watch>0-0</watch>")
    assert env.compute_reward() == pytest.approx(idle)


LOOKS = st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)).map(sorted), min_size=1, max_size=8)


@given(looks=LOOKS, step_frame_reward=st.sampled_from(["iou", "last_iou"]))
@settings(max_examples=30)
def test_looks_earn_what_a_reference_says(looks: list[list[int]], step_frame_reward: str) -> None:
    env, text = make(max_turns=9, step_frame_reward=step_frame_reward)
    assert env.relevant is not None
    overlaps = [frame_iou(env.indices, env.relevant)]
    most = min(1.0, 8 / len(env.relevant))
    for first, last in looks:
        _, info = play(env, text, f"<retrieve>{first},{last}</retrieve>")
        overlap = frame_iou(info["frame_indices"], env.relevant)
        if step_frame_reward == "last_iou":
            expected = 0.5 * (overlap > overlaps[-1] + 0.001)
        else:
            share = (min(overlap, most) - max(overlaps)) / (most - overlaps[0])
            expected = 0.5 * share if overlap > max(overlaps) + 0.001 else 0.0
        assert info["rewards"]["frames"] == pytest.approx(expected)
        overlaps.append(overlap)
    if step_frame_reward == "iou":
        assert env.compute_reward() <= 0.5 + 1e-9


def looking(env: VideoEnv, text: VideoText, *looks: tuple[int, int]) -> float:
    """What an episode earns in which all turns are looks; the last one is repeated until no turn is left."""
    while env.turns_left:
        first, last = looks[min(env.turn, len(looks) - 1)]
        play(env, text, f"<retrieve>{first},{last}</retrieve>")
    return env.compute_reward()


@pytest.mark.parametrize("task", range(12))
def test_neither_back_and_forth_nor_small_steps_earn_what_an_answer_earns(task: int) -> None:
    env, text = make(task, max_turns=9)
    if not env.relevant:
        pytest.skip("nothing is known to be relevant")
    while not env.over:
        play(env, text, text.solve())
    right = env.compute_reward()
    first, last = min(env.relevant), max(env.relevant)
    nearer = [(first, min(env.sampling.last, last + 4 * (8 - turn))) for turn in range(9)]
    for looks in ([(first, last), (0, 0)] * 5, [(0, 0), (first, last)] * 5, nearer):
        env.reset(seed=0, options={"task": task})
        assert looking(env, text, *looks) < right
    upstream, text = make(task, max_turns=9, step_frame_reward="last_iou")
    assert looking(upstream, text, *([(0, 0), (first, last)] * 5)) > right


def test_a_look_is_another_state_after_a_better_one() -> None:
    """The same frames earn something after worse ones, and nothing after better ones."""
    anchors = []
    for before in ("<watch>0-0</watch>", "<retrieve>{},{}</retrieve>"):
        env, text = make()
        assert env.relevant is not None
        play(env, text, before.format(env.relevant[0], env.relevant[-1]))
        play(env, text, "<watch>0-1</watch>")
        anchors.append(text.anchor())
    assert anchors[0] != anchors[1]


def test_rewards_are_configured() -> None:
    rules: dict[str, Any] = {
        "format_reward": 0,
        "answer_reward": 10,
        "turn_cost": 0.5,
        "frame_reward": 2,
        "final_frame_reward": True,
    }
    env, text = make(**rules)
    assert env.relevant is not None
    relevant = f"<retrieve>{env.relevant[0]},{env.relevant[-1]}</retrieve>"
    assert play(env, text, relevant)[0] == 2
    assert play(env, text, f"<answer>{env.question.solution}</answer>")[0] == 10 * 0.5 + 2
    env, text = make(step_frame_reward="none", final_frame_reward=True, format_reward_per="turn")
    assert play(env, text, relevant)[0] == 0.1
    assert play(env, text, "<watch>0-0</watch>")[0] == 0.1
    _, info = play(env, text, f"<answer>{env.question.solution}</answer>")
    assert info["rewards"]["final_frames"] == -0.5  # less is seen of what matters than at first
    env, text = make(final_frame_reward=True)
    play(env, text, relevant)
    assert "final_frames" not in play(env, text, f"<answer>{wrong(env.question)}</answer>")[1]["rewards"]


async def test_turns_end_the_episode() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("video", max_turns=2) as env:
        await env.reset(seed=0)
        await env.step("nothing")  # an invalid reply takes no turn
        assert not (await env.step("<watch>0-5</watch>")).done
        last = await env.step("<watch>0-5</watch>")
        assert (last.terminated, last.truncated) == (False, True)
        assert last.observation.images == ()
        assert (await env.reset(seed=0)).observation.text.endswith("Turn 1 of 2: watch or answer.")


def test_an_action_that_cannot_be_done_takes_a_turn_of_the_raw_env() -> None:
    env, text = make()
    shown, reward, terminated, truncated, info = env.step(VideoText.default_action)
    assert (reward, terminated, truncated, info["error_kind"]) == (0, False, False, "format_error")
    assert "cannot be done" in text.describe(shown).text
    env.step("<retrieve>0,64</retrieve>")
    assert env.step("<watch>9-3</watch>")[3]
    with pytest.raises(UsageError, match="over"):
        env.step("<watch>0-5</watch>")
    with pytest.raises(UsageError, match="not 3"):
        make()[0].step(3)  # type: ignore[arg-type]


def test_the_seed_chooses_the_episode() -> None:
    env = VideoEnv()
    size = env.get_split_size("train")
    first, again, other = (env.reset(seed=seed)[1] for seed in (3, 3 + 7 * size, 4))
    assert first == again != other
    assert first["index"] == 3
    assert env.get_split_size("val") > 0
    assert env.get_split_size("dev") == 0
    test = env.reset(seed=2, options={"task": {"split": "test"}})[1]
    assert (test["split"], test["index"]) == ("test", 2)
    assert env.reset(seed=2, options={"task": {"split": "test", "index": 1}})[1]["index"] == 1
    assert VideoEnv(seed=5).reset()[1]["index"] == 5
    for task in (size, -1, True, "3", {"index": 1, "splt": "test"}, {"split": "dev"}):
        with pytest.raises(UsageError, match=r"task=|split="):
            env.reset(options={"task": task})


def test_every_picture_has_its_mark() -> None:
    env, text = make(WORD)
    for reply in ("", "<watch>2-4</watch>"):
        shown = env.step(text.parse(reply).actions[0])[0] if reply else env.reset(seed=WORD)[0]
        told = text.describe(shown)
        assert told.text.count("<image>") == len(told.images) == len(shown["indices"])
        assert all(image.dtype == np.uint8 and image.shape == (72, 96, 3) for image in told.images)
    assert text.describe(env.step("<answer>x</answer>")[0]).images == ()


async def test_a_model_sees_pictures_where_the_text_has_them() -> None:
    asked: list[Request] = []

    class Watcher:
        async def generate(self, request: Request) -> Generation:
            asked.append(request)
            return Generation("<watch>0-1</watch>" if len(asked) == 1 else "<answer>A</answer>")

    async with EnvPool(backend="inline") as pool, pool.open("video") as env:
        await run_rollout(env, ChatAgent(Watcher()), seed=CHOICE)
    content = asked[1].messages[-1]["content"]
    kinds = [part["type"] for part in content]
    assert kinds == ["text", "image_url"] * 4 + ["text"]
    assert content[2]["text"] == "\nFrame 1 (0.25 s): "
    assert "<image>" not in "".join(part.get("text", "") for part in content)


def test_prompt_format() -> None:
    plain = VideoText(VideoEnv(prompt_format="no_think", dataset_name="mine"), TextOptions())
    plain._env.reset(seed=0)
    assert "<think>" not in plain.system_prompt() + plain.solve()
    assert "<think>" in make()[1].system_prompt()
    with pytest.raises(UsageError, match="prompt_format='loud'"):
        VideoEnv(prompt_format="loud")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"max_turn": 3}, "did you mean 'max_turns'"),
        ({"max_turns": 0}, r">= 1 - at `\$.max_turns`"),
        ({"step_frame_reward": "sometimes"}, "step_frame_reward"),
        ({"dataset_name": 3}, "dataset_name=3"),
        ({"seed": -1}, "seed=-1"),
        ({"embedder": "nobody"}, "embedder='nobody'"),
        *(
            ({key: value}, f"{key}={value} is not a number")
            for key in ("format_reward", "turn_cost")
            for value in (math.nan, math.inf)
        ),
        ({"similarity_epsilon": math.nan}, "similarity_epsilon"),
    ],
)
def test_wrong_options_are_named(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        VideoEnv(**kwargs)


@pytest.mark.parametrize(
    ("said", "read"), [("\N{MINUS SIGN}5", "-5"), ("-5%", "-5"), ("-$5", None), ("5-", None), ("5 - 3", None)]
)
def test_numbers_are_read_with_their_sign(said: str, read: str | None) -> None:
    asked = question("numerical", "-5")
    if read is None:
        with pytest.raises(ActionError, match="answer with a number"):
            read_answer(asked, said, 20.0)
    else:
        assert read_answer(asked, said, 20.0) == read


def question(kind: Any, solution: str | None = None, **fields: Any) -> Question:
    return Question("q", ("x.mp4",), "?", kind, solution=solution, **fields)


@pytest.mark.parametrize(
    ("asked", "answer", "points", "right"),
    [
        (question("numerical", "3"), "3.001", 1, True),
        (question("numerical", "3"), "3.01", 0, False),
        (question("free-form", "The red BUS."), "red bus", 1, True),
        (question("free-form", "red bus"), "bus", pytest.approx(2 / 3), False),
        (question("free-form", "red bus"), "cat", 0, False),
        (question("free-form", "-5"), "-5", 1, True),
        (question("free-form", "-5"), "\N{MINUS SIGN}5", 1, True),
        (question("free-form", "-5"), "5", 0, False),
        (question("free-form", "5"), "-5", 0, False),
        (question("free-form", "3-5"), "3 - 5", 1, True),
        (question("free-form", "3.5"), "5.3", 0, False),
        (question("free-form", "1,000"), "1000.", 1, True),
        (question("free-form", ".5"), "5", 0, False),
        (question("free-form", "C++"), "c++", 1, True),
        (question("free-form", "C++"), "C", 0, False),
        (question("free-form", "C"), "C#", 0, False),
        (question("free-form", "A"), "A", 1, True),
        (question("free-form", "A"), "B", 0, False),
        (question("free-form", "THE"), "The.", 1, True),
        (question("free-form", "THE"), "a", 0, False),
        (question("free-form", "vitamin A"), "the vitamin A", 1, True),
        (question("free-form", "vitamin A"), "vitamin C", 0.5, False),
        (question("free-form", "&"), "&", 1, True),
        (question("free-form", "&"), '"&"', 1, True),
        (question("free-form", "&"), "and", 0, False),
        (question("free-form", "*"), "*", 1, True),
        (question("free-form", "*"), "_", 0, False),
        (question("moment", windows=((4.0, 8.0),)), "4-8", 1, True),
        (question("moment", windows=((4.0, 8.0),)), "6-8", 0.5, True),
        (question("moment", windows=((0.0, 2.0), (6.0, 8.0))), "0-8", 0.5, True),
        (question("moment", windows=((4.0, 8.0),)), "8-9", 0, False),
        (question("moment"), "4-8", 0, False),  # QVHighlights withholds its test windows
        (question("multiple choice"), "A", 0, False),
    ],
)
def test_answers_are_scored(asked: Question, answer: str, points: float, right: bool) -> None:
    score = score_answer(asked, answer)
    assert (score.points, score.right) == (points, right)


whole_windows = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=4).map(
    lambda pairs: tuple((float(start), float(start + length)) for start, length in pairs)
)


@given(whole_windows, whole_windows)
def test_overlap_in_time_is_that_of_the_seconds_covered(
    said: tuple[tuple[float, float], ...], meant: tuple[tuple[float, float], ...]
) -> None:
    first, second = (
        {second for start, end in windows for second in range(int(start), int(end))} for windows in (said, meant)
    )
    assert window_iou(said, meant) == pytest.approx(frame_iou(first, second))


def test_gain_is_beyond_epsilon_only() -> None:
    assert [gain(0.5, after, 0.04) for after in (0.55, 0.53, 0.5, 0.47, 0.45)] == [1, 0, 0, 0, -1]


async def test_the_expert_watches_first_and_answers_at_once_if_it_must() -> None:
    async with EnvPool(backend="inline") as pool:
        async with pool.open("video", expert=True) as env:
            assert "<watch>" in (await env.reset(seed=0)).info["expert"]
        async with pool.open("video", expert=True, max_turns=1) as env:
            last = await env.step((await env.reset(seed=0)).info["expert"])
            assert last.info["success"]


async def test_the_batch_calls_of_a_service() -> None:
    async with EnvPool(workers=1) as pool, pool.open("video", dataset_name="qvhighlight", seed=42) as env:
        assert await env.call("get_split_size", "train") > await env.call("get_split_size", split="test") > 0
        assert "<watch>" in await env.call("system_prompt")
        status = await env.call("init_embedder", "http://127.0.0.1:9")
        assert status["ok"] is False
        assert "127.0.0.1:9" in status["error"]
        await env.reset(seed=1, task={"split": "test"})
        earned = (await env.step("<watch>0-5</watch>")).reward + (await env.step("<watch>5-10</watch>")).reward
        assert await env.call("compute_reward") == pytest.approx(earned)
        picture = await env.render()
        assert picture.shape == (4 * 72, 4 * 96, 3)
