"""Policies that need no server: the same replies whatever the scheduling, batches, and compositions."""

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from asyncrollout import (
    BatchedPolicy,
    ClosedError,
    EnvPool,
    Generation,
    ProviderError,
    RandomPolicy,
    Request,
    Rollouts,
    Sampling,
    ScriptedPolicy,
    SolverPolicy,
    UsageError,
    cached,
    fallback,
    limited,
)
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

ASKED = Request(messages=[{"role": "user", "content": "Hello"}])
EXPERT = "<think>so</think><answer>Up || Left || Down</answer>"


def turn(number: int, session: str = "s", **fields: Any) -> Request:
    return Request(messages=ASKED.messages, session=session, turn=number, **fields)


async def ask_all(policy: Any, requests: Sequence[Request]) -> list[Any]:
    """All at once; a failure stands in the place of its answer."""
    answers: list[Any] = [None] * len(requests)

    async def ask(place: int) -> None:
        try:
            answers[place] = await policy.generate(requests[place])
        except ProviderError as error:
            answers[place] = error

    async with anyio.create_task_group() as tasks:
        for place in range(len(requests)):
            tasks.start_soon(ask, place)
    return answers


async def test_script_is_read_in_the_order_of_calls() -> None:
    policy = ScriptedPolicy(["a", "b"])
    assert [(await policy.generate(ASKED)).text for _ in range(5)] == ["a", "b", "a", "b", "a"]


async def test_script_goes_by_the_turns_of_a_session() -> None:
    policy = ScriptedPolicy(["a", "b", "c"])
    requests = [turn(2, "x"), turn(0, "y"), turn(1, "x"), turn(1, "x"), turn(3, "y")]
    assert [(await policy.generate(request)).text for request in requests] == ["c", "a", "b", "b", "a"]


async def test_script_may_be_a_function() -> None:
    async def later(request: Request) -> str:
        await anyio.lowlevel.checkpoint()
        return f"turn {request.turn}"

    assert (await ScriptedPolicy(later).generate(turn(3))).text == "turn 3"
    assert (await ScriptedPolicy(lambda request: request.session).generate(turn(3))).text == "s"
    whole = Generation("x", finish_reason="length")
    assert await ScriptedPolicy(lambda _: whole).generate(ASKED) is whole


@pytest.mark.parametrize("action", [3, 0, (1, 2), [0.5], {"left": 1}])
async def test_script_may_have_actions(action: Any) -> None:
    async def later(_: Request) -> Any:
        return action

    for script in ([action], lambda _: action, later):
        found = await ScriptedPolicy(script).generate(ASKED)
        assert (found.text, found.action) == ("", action)


async def test_script_without_a_reply() -> None:
    with pytest.raises(UsageError, match="the reply is None"):
        await ScriptedPolicy(lambda _: None).generate(ASKED)


@pytest.mark.parametrize("wrong", ["text", []])
def test_what_is_no_script(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a list of replies"):
        ScriptedPolicy(wrong)


async def test_random_depends_on_session_and_turn_alone() -> None:
    actions = [f"action {number}" for number in range(100)]
    requests = [turn(number, session) for session in "xyz" for number in range(10)]
    first = [(await RandomPolicy(actions, seed=1).generate(request)).text for request in requests]
    policy = RandomPolicy(actions, seed=1)
    assert [(await policy.generate(request)).text for request in reversed(requests)] == first[::-1]
    assert len(set(first)) > 20
    other = RandomPolicy(actions, seed=2)
    assert [(await other.generate(request)).text for request in requests] != first
    assert first[0].startswith("<answer>action ")


async def test_random_actions_need_not_be_texts() -> None:
    assert (await RandomPolicy([(1, 2)]).generate(ASKED)).action == (1, 2)


async def test_solver_plays_the_expert() -> None:
    assert (await SolverPolicy().generate(turn(0, expert=EXPERT))).text == EXPERT


async def test_solver_errs_as_often_as_told_and_always_alike() -> None:
    requests = [turn(number, expert=EXPERT) for number in range(400)]
    texts = [(await SolverPolicy(0.25, seed=3).generate(request)).text for request in requests]
    wrong = [text for text in texts if text != EXPERT]
    assert 60 <= len(wrong) <= 140
    assert set(wrong) == {"I am not sure what to do.", "<think>so</think><answer>Down</answer>"}
    assert [(await SolverPolicy(0.25, seed=3).generate(request)).text for request in requests[::-1]] == texts[::-1]


async def test_solver_takes_seeded_time() -> None:
    async def seconds(**options: Any) -> list[float]:
        policy = SolverPolicy(**options)
        return [(await policy.generate(turn(number, expert=EXPERT))).timings.total for number in range(5)]

    assert await seconds(latency=1e-4) == await seconds(latency=1e-4)
    assert all(1e-5 <= taken <= 2e-5 for taken in await seconds(latency=(1e-5, 2e-5)))
    assert await seconds() == [0.0] * 5


async def test_solver_without_an_expert() -> None:
    with pytest.raises(UsageError, match="open the env with expert=True"):
        await SolverPolicy().generate(ASKED)


@pytest.mark.parametrize("options", [{"error_rate": 2}, {"latency": -1}, {"latency": (2, 1)}])
def test_wrong_solver(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(options))}="):
        SolverPolicy(**options)


async def test_solver_wins_an_episode() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("sokoban", expert=True) as env:
        outcome = await env.reset(seed=5)
        policy, number = SolverPolicy(0.3, seed=1), 0
        while not outcome.done:
            reply = await policy.generate(turn(number, expert=outcome.info["expert"]))
            outcome, number = await env.step(reply.text), number + 1
    assert outcome.info["success"]


class Model:
    """Answers with its turn, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()

    def __call__(self, requests: list[Request]) -> list[Any]:
        self.batches.append([request.turn for request in requests])
        self.threads.add(threading.current_thread().name)
        return [f"reply to {request.turn}" for request in requests]


async def test_concurrent_requests_make_batches_in_a_thread() -> None:
    model = Model()
    async with BatchedPolicy(model, max_batch=8, max_wait=5) as policy:
        answers = await ask_all(policy, [turn(number) for number in range(32)])
    assert [answer.text for answer in answers] == [f"reply to {number}" for number in range(32)]
    assert [len(batch) for batch in model.batches] == [8, 8, 8, 8]
    assert threading.current_thread().name not in model.threads


async def test_a_batch_that_does_not_fill_goes_after_its_wait() -> None:
    model = Model()
    async with BatchedPolicy(model, max_batch=8, max_wait=0.001) as policy:
        assert (await policy.generate(turn(1))).text == "reply to 1"
    assert model.batches == [[1]]


async def test_what_a_model_raises_belongs_to_those_who_asked() -> None:
    def model(requests: list[Request]) -> list[Any]:
        if any(request.turn == 7 for request in requests):
            raise ValueError("no seven")
        return ["fine"] * len(requests)

    async with BatchedPolicy(model, max_batch=1) as policy:
        answers = await ask_all(policy, [turn(number) for number in range(6, 9)])
        assert [getattr(answer, "text", str(answer)) for answer in answers] == [
            "fine",
            "the model raised ValueError: no seven",
            "fine",
        ]
        assert (await policy.generate(turn(1))).text == "fine"


async def test_a_model_may_fail_one_request_alone() -> None:
    def model(requests: list[Request]) -> list[Any]:
        return [KeyError("three") if request.turn == 3 else request.turn for request in requests]

    async with BatchedPolicy(model, max_batch=4, max_wait=5) as policy:
        answers = await ask_all(policy, [turn(number) for number in range(4)])
    assert [answer.action for answer in answers[:3]] == [0, 1, 2]
    assert "KeyError" in str(answers[3])


async def test_a_model_with_too_few_results() -> None:
    async with BatchedPolicy(lambda requests: [], max_batch=1) as policy:
        with pytest.raises(ProviderError, match="returned 0 results for 1 requests"):
            await policy.generate(ASKED)


async def test_a_cancelled_request_is_left_out_and_hurts_nobody() -> None:
    model = Model()
    scope = anyio.CancelScope()

    async def ask_in_scope() -> None:
        with scope:
            await policy.generate(turn(9))

    async with BatchedPolicy(model, max_batch=3, max_wait=5) as policy, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_in_scope)
        await all_tasks_blocked()
        scope.cancel()
        answers = await ask_all(policy, [turn(1), turn(2)])
    assert [answer.text for answer in answers] == ["reply to 1", "reply to 2"]
    assert model.batches == [[1, 2]]


async def test_a_deadline_of_a_request() -> None:
    release = threading.Event()

    def model(requests: list[Request]) -> list[Any]:
        release.wait(30)
        return ["late"] * len(requests)

    async with BatchedPolicy(model, max_batch=1) as policy:
        with pytest.raises(ProviderError, match=r"no response within 0.01 s"):
            await policy.generate(turn(1, seconds=0.01))
        release.set()
        assert (await policy.generate(turn(2))).text == "late"


async def test_closed_policy_says_so() -> None:
    policy = BatchedPolicy(Model())
    with pytest.raises(ClosedError, match="async with"):
        await policy.generate(ASKED)
    async with policy:
        pass
    with pytest.raises(ClosedError, match="async with"):
        await policy.generate(ASKED)


class Failing:
    async def generate(self, request: Request) -> Generation:
        raise ProviderError("down")


async def test_fallback_asks_the_next() -> None:
    assert (await fallback(Failing(), ScriptedPolicy(["b"])).generate(ASKED)).text == "b"
    with pytest.raises(ProviderError, match="down"):
        await fallback(Failing(), Failing()).generate(ASKED)


async def test_cached_asks_once_for_the_same() -> None:
    policy = cached(ScriptedPolicy(["a", "b", "c"]), size=2)
    first = [(await policy.generate(ASKED)).text for _ in range(2)]
    warm = Request(messages=ASKED.messages, sampling=Sampling(temperature=0.5))
    assert first == ["a", "a"]
    assert (await policy.generate(warm)).text == "b"
    assert (await policy.generate(Request(prompt_ids=[1]))).text == "c"
    assert (await policy.generate(ASKED)).text == "a"  # forgotten, and asked anew


async def test_limited_lets_only_so_many_through() -> None:
    inside, most = 0, 0

    async def reply(request: Request) -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await all_tasks_blocked()
        inside -= 1
        return "x"

    await ask_all(limited(ScriptedPolicy(reply), 3), [turn(number) for number in range(9)])
    assert most == 3


async def test_batch_that_is_being_gathered_when_the_policy_closes_is_answered() -> None:
    answers: list[Generation] = []

    async def ask() -> None:
        answers.append(await policy.generate(Request()))

    model = BatchedPolicy(lambda requests: ["yes" for _ in requests], max_wait=60)
    async with anyio.create_task_group() as tasks, model as policy:
        tasks.start_soon(ask)
        await all_tasks_blocked()
    assert [answer.text for answer in answers] == ["yes"]


async def test_cached_replies_are_of_the_same_request_alone() -> None:
    asked: list[Request] = []

    async def reply(request: Request) -> Generation:
        asked.append(request)
        await anyio.lowlevel.checkpoint()
        return Generation(f"{len(asked)}", action=request.data)

    policy = cached(ScriptedPolicy(reply))
    for data in (1, 2, np.arange(3), np.arange(4), np.float32(0.5)):
        first, again = await policy.generate(Request(data=data)), await policy.generate(Request(data=data))
        assert first is again
    assert len(asked) == 5
    picture = [{"role": "user", "content": ["look", np.zeros((2, 2, 3), np.uint8)]}]
    assert await policy.generate(Request(messages=picture)) is await policy.generate(Request(messages=picture))
    with pytest.raises(UsageError, match="cannot be compared"):
        await policy.generate(Request(data=object()))


async def test_equal_requests_at_once_are_asked_once_also_when_the_first_gives_up() -> None:
    asked, go = 0, anyio.Event()

    async def reply(request: Request) -> str:
        nonlocal asked
        asked += 1
        await go.wait()
        return str(asked)

    policy = cached(ScriptedPolicy(reply))
    answers: list[str] = []

    async def one() -> None:
        answers.append((await policy.generate(Request())).text)

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as first:
                first.start_soon(policy.generate, Request())
                await all_tasks_blocked()
                for _ in range(5):
                    tasks.start_soon(one)
                await all_tasks_blocked()
                scope.cancel()
        await all_tasks_blocked()
        go.set()
    assert answers == ["2"] * 5


async def test_new_weights_make_caches_forget_and_reach_policies_inside() -> None:
    reported: list[Any] = []

    class Server:
        version = 0

        async def generate(self, request: Request) -> Generation:
            return Generation(f"v{self.version}", version=self.version)

        async def pause(self, mode: str) -> None:
            reported.append(mode)

        async def resume(self, version: int) -> None:
            self.version = version

    async with Rollouts("bandit", policy=cached(limited(Server(), 2)), group_size=1) as rollouts:
        before = await rollouts.collect(groups=1)
        async with rollouts.weight_update(3, "abort"):
            pass
        after = await rollouts.collect(groups=1)
        assert rollouts.version == 3
    assert reported == ["abort"]
    assert {turn.reply for turn in before.trajectories[0].turns} == {"v0"}
    assert {turn.reply for turn in after.trajectories[0].turns} == {"v3"}


async def test_deadline_of_a_request_holds_for_compositions() -> None:
    async def never(request: Request) -> str:
        await anyio.sleep_forever()
        return ""

    policy = limited(ScriptedPolicy(never), 1)
    for slow in (policy, fallback(policy, policy)):
        with pytest.raises(ProviderError, match="no response within"):
            await slow.generate(Request(seconds=0.02))


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_wrong_sizes_of_compositions(wrong: int) -> None:
    with pytest.raises(UsageError, match="most="):
        limited(ScriptedPolicy(["a"]), wrong)
    with pytest.raises(UsageError, match="size="):
        cached(ScriptedPolicy(["a"]), size=wrong)


async def test_each_request_of_a_batch_has_an_error_of_its_own() -> None:
    def model(requests: list[Request]) -> list[str]:
        raise ProviderError("out of memory")

    errors: list[ProviderError] = []

    async def ask() -> None:
        try:
            await policy.generate(Request())
        except ProviderError as error:
            errors.append(error)

    async with BatchedPolicy(model, max_wait=0.01) as policy, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
    assert len({id(error) for error in errors}) == 3


async def test_text_instead_of_a_list_of_texts_is_an_error() -> None:
    async with BatchedPolicy(lambda requests: "no") as policy:
        with pytest.raises(ProviderError, match="returned 1 results for 1 requests"):
            await policy.generate(Request())


async def test_callers_of_a_policy_that_fails_around_them_are_let_go() -> None:
    go = threading.Event()
    ends: list[Any] = []

    def model(requests: list[Request]) -> list[str]:
        go.wait(PATIENCE)
        return ["late" for _ in requests]

    async def ask() -> None:
        try:
            ends.append(await policy.generate(Request()))
        except ClosedError as error:
            ends.append(error)

    async with anyio.create_task_group() as tasks:
        with pytest.raises(KeyError):  # noqa: PT012
            async with BatchedPolicy(model, max_batch=1, max_wait=0) as policy:
                for _ in range(3):
                    tasks.start_soon(ask)
                await all_tasks_blocked()
                go.set()
                raise KeyError("mine")
    assert [type(end) for end in ends].count(ClosedError) >= 2  # one is at work, and may still be answered
    assert len(ends) == 3
