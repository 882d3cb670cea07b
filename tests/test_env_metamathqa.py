"""MetaMathQA: answers found and compared, attempts and rewards, and problems whose answers are computed again here."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import EnvPool, Parsed, TextOptions, UsageError
from asyncrollout.text.stated import find_stated
from asyncrollout_envs.metamathqa import OWN_PROBLEMS, MetaMathQA, MetaMathQAText, answers
from asyncrollout_envs.metamathqa.answers import LONGEST_ANSWER, answer_of, same_answer
from asyncrollout_envs.metamathqa.word_problems import PER_KIND, file_text
from tests import answer_pairs
from tests.counted_work import calls_made

WRONG = "Incorrect. Please think again."


def started(task: int = 0, **kwargs: Any) -> MetaMathQA:
    env = MetaMathQA(**kwargs)
    env.reset(seed=0, options={"task": task})
    return env


def project(reply: str, **options: Any) -> Parsed:
    return MetaMathQAText.project(reply, TextOptions(**options))


@pytest.mark.parametrize(
    "forms",
    [
        ["1000", "1,000", "1000.0", "$1,000", "1000.", "1e3", "1.0E+3", "**1000**", r"\$1,\!000", "1{,}000", "+1000"],
        ["1/2", "0.5", ".5", r"\frac{1}{2}", r"$\dfrac12$", "2/4", "5e-1", r"\boxed{\frac{1}{2}}", "0.50", " 1 / 2 "],
        ["-3", "\u22123", "- 3", "-3.00", "-$3", "$-3", r"\(-3\)", r"-\frac{6}{2}", r"\frac{-6}{2}", r"\[ -3 \]"],
        ["50", "50%", "50 %", r"50\%", "50 percent"],
        ["50 cm", r"50\text{ cm}", "50cm", "50 centimeters", "0.5 m"],
        ["1.5", "1 1/2", r"1\frac{1}{2}", "3/2", "1\u00bd"],
        ["1.5 cm^2", r"1.5\ \text{cm}^2", "1.5 square cm", "1.5 cm\u00b2"],
        ["Monday", "monday", " MONDAY. ", '"Monday"', r"\text{Monday}", "**Monday**", "$Monday$"],
        ["(1, 2)", "(1,2)", r"\left(1, 2\right)", "$(1,2)$"],
        [r"\frac{\sqrt{3}}{2}", r"\dfrac{\sqrt{3}}{2}", r"$ \frac{\sqrt{3}}{2} $."],
        ["x + 1", "x+1", "X+1"],
        ["10:05", "10:05.", " 10:05"],
        ["five million", "Five Million"],
        ["5", "x = 5", "(5)", "$x=5$", "x = (5)", r"y = $\frac{10}{2}$", "( 5 )", "n = 5 cm"],
        ["5", "x = 5", "(5 apples)", "5 apple"],
        ["y = 2x + 1", "2x+1", "2 x + 1"],
        ["3 x", "3x", "$3x$"],
        ["5 pi", "5pi", "$5 pi$"],
        ["(1, 234)", "(1,234)"],
    ],
)
def test_forms_of_the_same_answer(forms: list[str]) -> None:
    for given_answer, expected in itertools.product(forms, forms):
        assert same_answer(given_answer, expected, "How many apples?"), (given_answer, expected)


@pytest.mark.parametrize(
    "given_answer",
    [
        *("50%", "50 apples", r"50\text{ cm}", r"50^\circ", "50 degrees", "50 km/h", "50 m", "50 g", "50 L", "50 h"),
        *("50 s", "50 km", "50 km^2", "50 dollars a day", r"50\ cm", r"50\,\text{cm}"),
    ],
)
def test_unit_may_be_left_out(given_answer: str) -> None:
    assert same_answer(given_answer, "50", "How many apples?")


@pytest.mark.parametrize(
    ("given_answer", "expected"),
    [
        ("0.333", "1/3"),
        ("50%", "0.5"),
        ("1", "-1"),
        ("10,00", "1000"),
        ("1,2", "12"),
        ("5x", "5"),
        ("5 pi", "5"),
        ("5 pi cm", "5 cm"),
        ("5 \u03c0", "5"),
        ("5 sqrt x", "5"),
        *((f"3 {letter}", "3") for letter in "xyznabcieXN"),
        ("3 x", "3 y"),
        ("3 x^2", "3"),
        ("xy = 5", "5"),
        ("x =", "="),
        ("(1,234)", "1234"),
        ("((5))", "5"),
        ("12 34", "1234"),
        ("12 $34", "1234"),
        ("5 million", "5"),
        ("5 and a half", "5"),
        ("5 pm", "5 am"),
        ("5 - x", "5"),
        ("5 or 6", "5"),
        ("(1, 2)", "[1, 2]"),
        ("1/0", "0"),
        ("1e9999", "1e9998"),
        ("1e999999999", "0"),
        ("yes", "no"),
        ("Monday", "Mon"),
        ("$", "."),
        ("$", "$$"),
        ("", "0"),
        (".", "0"),
        ("10:05", "1005"),
        ("\u00b2", "2"),
        ("\u0665", "5"),
        ("9" * 5_000, "9" * 5_001),
    ],
)
def test_different_answers(given_answer: str, expected: str) -> None:
    assert not same_answer(given_answer, expected)
    assert not same_answer(expected, given_answer)


@given(st.fractions(), st.integers(1, 10**6))
def test_numbers_equal_themselves_in_every_form(value: Fraction, factor: int) -> None:
    forms = [
        f"{value.numerator}/{value.denominator}",
        f"{value.numerator * factor}/{value.denominator * factor}",
        f"\\frac{{{value.numerator}}}{{{value.denominator}}}",
    ]
    for one, other in itertools.product(forms, forms):
        assert same_answer(one, other)
        assert not same_answer(one, f"{value.numerator + value.denominator}/{value.denominator}")


@given(st.integers(-(10**30), 10**30), st.decimals(allow_nan=False, allow_infinity=False, places=4, max_value=10**12))
def test_grouped_and_decimal_numbers_equal_themselves(integer: int, decimal: Any) -> None:
    assert same_answer(f"{integer:,}", f"{integer}.00")
    assert same_answer(f"{decimal:,f}", f"{decimal:f}0")
    assert same_answer(f"{decimal:f}", str(Fraction(decimal)))
    assert same_answer(f"${integer}", str(integer + 1)) is False


@given(st.text(st.sampled_from("0123456789.,/-+$%e \\{}()boxedtextfrac^") | st.characters(), max_size=300), st.text())
def test_comparing_and_finding_never_raises(one: str, other: str) -> None:
    assert same_answer(one, one)
    assert same_answer(one, other) == same_answer(other, one)
    assert len(answer_of(f"The answer is {one}")) <= len(one)


LARGE = 200 * LONGEST_ANSWER
DIGITS = 4_000  # Python reads no number with more than 4,300
MOST_CALLS = 100_000  # 57,237 are the most that any answer below takes; a square of its length is 800,000


def between(start: str, filling: str, end: str, length: int = LARGE) -> str:
    return start + filling * ((length - len(start + end)) // len(filling)) + end


@pytest.mark.parametrize(
    "hostile",
    [
        between("-", " ", "="),
        between("-", "~", "="),
        between("-", "\\ ", "="),
        between("-$", "\u00a0", "="),
        between("5", " ", "="),
        between("1", " ", "/"),
        between("^", " ", "="),
        between("\\frac{1", " ", "="),
        between("\\text", " ", "="),
        between("5 a", " a", "1"),
        between("5 m", "^", "1"),
        between("5 ", "m", "="),
        between("", "9", "=", DIGITS),
        between("1", ",000", "=", DIGITS),
        between("\\boxed{", "{}", "1"),
        between("x", " ", "= 6"),
        between("(", " ", "6)"),
    ],
)
def test_no_pattern_takes_more_than_linear_time(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of answers two hundred times as long as those that are read, a quadratic pattern would not see the end."""
    monkeypatch.setattr(answers, "LONGEST_ANSWER", LARGE)
    assert not same_answer(hostile, "5")
    assert not same_answer("5", hostile)


@pytest.mark.parametrize("text", ["x", "9", "$", " ", "{", "\\boxed{", "\\text{", "answer is ", "1,", "1/", "e"])
def test_a_megabyte_is_an_answer_like_any_other(text: str) -> None:
    huge = text * (1_000_000 // len(text))
    assert not same_answer(huge, "5")
    assert not same_answer("5", huge + "1")
    assert same_answer(huge, huge)
    assert len(answer_of(huge)) <= LONGEST_ANSWER
    assert len(find_stated(huge[:30_000]) or "") <= 30_000


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("2 + 3 = 5.\n#### 5\nThe answer is: 5", "5"),
        ("The answer is 4? No. The answer is: 5.", "5"),
        ("The answer is: $\\frac{1}{2}$.", r"\frac{1}{2}"),
        (r"The answer is: $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"The answer is: \boxed{1} + \boxed{2}", r"\boxed{1} + \boxed{2}"),
        (r"The answer is: \text{Monday}.", "Monday"),
        ("The answer is: $1,000", "$1,000"),
        ("The answer is: 5 dollars.", "5 dollars"),
        ("It is 5.", ""),
        ("The answer is: .", ""),
        ("The answer is", ""),
        ("The answer is: " + "9" * (LONGEST_ANSWER + 1), ""),
        ("", ""),
    ],
)
def test_answer_of_a_solution(response: str, answer: str) -> None:
    assert answer_of(response) == answer


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<think>is it 4?</think><answer>5</answer>", "5"),
        ("<answer> 5 || 6 </answer>", "5 || 6"),
        ("<answer>The answer is: 5.</answer>", "5"),
        (r"<answer>so \boxed{5}</answer>", "5"),
        ("<answer>2 + 3\n= 5</answer>", "2 + 3\n= 5"),
        ("<think>The answer is 4</think>The answer is 5. I hope this helps.", "5"),
        ("The answer is:\n\n5\n\nbecause", "5"),
        ("The answer is 3.5 dollars.", "3.5 dollars"),
        ("The answer is **5**.", "5"),
        ("**The answer is:** 5", "5"),
        (r"The answer is therefore $$\boxed{\frac{1}{2}}$$ as shown.", r"\frac{1}{2}"),
        (r"\boxed{4} is wrong. The answer is 5", "5"),
        ("We add 2 and 3.\n5\n\n", "5"),
        ("5", "5"),
        (r"\boxed{5", "5"),
        ("The answer is", "The answer is"),
        ("x" * 1_000_000 + "\n5", "5"),
    ],
)
def test_answer_in_a_reply(reply: str, action: str) -> None:
    assert project(reply) == Parsed((action,))


@pytest.mark.parametrize("reply", ["", " \n", "<think>5</think>", "<think>The answer is 5", "<answer> </answer>"])
def test_reply_without_an_answer(reply: str) -> None:
    parsed = project(reply)
    assert (parsed.valid, tuple(parsed.actions)) == (False, ())
    assert parsed.reason


def test_strict_takes_the_tagged_text_alone() -> None:
    tagged = "<think>x</think><answer>The answer is 5</answer>"
    assert project(tagged, strict=True) == Parsed(("The answer is 5",))
    assert not project("<answer>5</answer>", strict=True).valid
    assert not project("5", strict=True).valid


def test_default_action_is_wrong_for_every_problem() -> None:
    for row in own_rows():
        assert not same_answer(MetaMathQAText.default_action, answer_of(row["response"]))


@pytest.mark.parametrize("attempt", range(5))
def test_reward_halves_with_each_attempt(attempt: int) -> None:
    env = started()
    for _ in range(attempt):
        obs, reward, terminated, truncated, info = env.step("no idea")
        assert (obs, reward, terminated, truncated) == (WRONG, 0.0, False, False)
        assert info == {"action_is_effective": True, "success": False}
    obs, reward, terminated, truncated, info = env.step(env.problem.answer)
    assert (obs, reward, terminated, truncated) == ("Correct!", 1 / 2**attempt, True, False)
    assert info == {"action_is_effective": True, "success": True}


def test_last_attempt_truncates_if_it_is_wrong() -> None:
    env = started(max_attempts=2)
    assert env.step("no idea")[2:4] == (False, False)
    assert env.step("no idea")[2:4] == (False, True)


def test_last_attempt_ends_if_it_is_right() -> None:
    env = started(max_attempts=1)
    assert env.step(env.problem.answer)[1:4] == (1.0, True, False)


def test_without_a_limit_only_the_right_answer_ends() -> None:
    env = started(max_attempts=None)
    assert all(env.step("no idea")[1:4] == (0.0, False, False) for _ in range(2_000))
    assert env.step(env.problem.answer)[1:4] == (0.0, True, False)  # 1/2**2000 is less than any float


def test_reset_forgets_the_attempts() -> None:
    env = started()
    env.step("no idea")
    env.reset(seed=0, options={"task": 0})
    assert env.step(env.problem.answer)[1] == 1.0


def test_text_interface_tells_the_question_again() -> None:
    env = MetaMathQA(max_attempts=3)
    question, info = env.reset(seed=4)
    text = MetaMathQAText(env, TextOptions())
    assert text.describe(question) == question
    assert info == {"type": env.problem.kind}
    assert text.anchor() == (env.row, 0)
    obs, *_ = env.step("no idea")
    assert text.describe(obs) == f"{WRONG}\n{question}"
    assert text.anchor() == (env.row, 1)
    assert text.tell("5") == "5"


@pytest.mark.parametrize(("limit", "told"), [(1, "once"), (3, "3 times"), (None, "as often as needed")])
def test_system_prompt_tells_the_rules(limit: int | None, told: str) -> None:
    prompt = MetaMathQAText(started(max_attempts=limit), TextOptions()).system_prompt()
    assert f"You may answer {told}:" in prompt
    assert prompt.endswith("<think> your reasoning </think><answer> 4.5 </answer>")


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"max_attempts": 2.5}, r"max_attempts=2\.5"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"split": "dev"}, "split='dev'"),
        ({"data_path": "/nowhere/rows.json"}, "/nowhere/rows.json"),
        ({"data_path": ""}, "data_path"),
        ({"data_path": 5}, "data_path=5"),
    ],
)
def test_wrong_options_are_named(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"^metamathqa: .*{told}"):
        MetaMathQA(**kwargs)


def test_wrong_task_and_action_are_told() -> None:
    with pytest.raises(UsageError, match=r"metamathqa: task=160 .* 0 to 159"):
        started(160)
    with pytest.raises(TypeError, match="metamathqa: an action is an answer as text, not 5"):
        started().step(5)  # type: ignore[arg-type]


ROWS = [
    {
        "query": f"Double {n}.",
        "response": f"2*{n}\nThe answer is: {2 * n}",
        "type": "GSM_AnsAug",
        "original_question": "?",
    }
    for n in range(4)
]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_problems_from_a_file(tmp_path: Path, suffix: str) -> None:
    rows = [*ROWS, {"query": "Why?", "response": "Because.", "type": "", "original_question": "Why?"}]
    path = tmp_path / f"problems{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    env = MetaMathQA(data_path=path)
    assert env.skipped == 1
    assert env.reset(options={"task": 3}) == ("Double 3.", {"type": "GSM_AnsAug"})
    assert env.step("6.0")[1] == 1.0


def test_row_without_a_type(tmp_path: Path) -> None:
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([{**ROWS[0], "type": None}]))
    assert MetaMathQA(data_path=path).reset(options={"task": 0}) == ("Double 0.", {"type": ""})


def test_attempts_may_be_a_number_of_numpy() -> None:
    _, _, _, truncated, _ = started(max_attempts=np.int64(1)).step("no idea")
    assert truncated is True


def test_wordings_of_one_question_share_a_split(tmp_path: Path) -> None:
    rows = [
        {"query": f"{wording} {n}", "response": "The answer is: 1", "original_question": f"Question {n}"}
        for wording in ("What is", "Tell me", "Find")
        for n in range(15)
    ]
    path = tmp_path / "problems.json"
    path.write_text(json.dumps(rows))
    env = MetaMathQA(data_path=path, split="test")
    asked = {env.reset(options={"task": task})[0] for task in range(3)}
    assert asked == {"What is 9", "Tell me 9", "Find 9"}


def test_file_without_any_answer_and_with_a_wrong_row_is_told(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"query": "Why?", "response": "Because."}\n')
    with pytest.raises(UsageError, match=r"metamathqa: .*problems\.jsonl' holds no usable row \(1 skipped\)"):
        MetaMathQA(data_path=path)
    path.write_text('{"query": "Why?", "response": "Because."}\n{"query": "Why?", "response": null}\n')
    with pytest.raises(UsageError, match=r"metamathqa: .*problems\.jsonl, line 2: .*\$\.response"):
        MetaMathQA(data_path=path)


def own_rows() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(OWN_PROBLEMS.read_text())
    return rows


def test_own_problems_are_what_their_module_makes() -> None:
    assert OWN_PROBLEMS.read_text() == file_text()


def test_every_split_has_every_kind() -> None:
    kinds = {row["type"] for row in own_rows()}
    assert len(kinds) == 20
    for split, share in (("train", 8), ("val", 1), ("test", 1)):
        env = MetaMathQA(split=split)  # type: ignore[arg-type]
        seen = Counter(env.reset(options={"task": task})[1]["type"] for task in range(share * len(kinds)))
        assert seen == dict.fromkeys(kinds, share)
        with pytest.raises(UsageError):
            env.reset(options={"task": share * len(kinds)})


def test_own_questions_differ() -> None:
    assert len({row["query"] for row in own_rows()}) == 20 * PER_KIND


def searched(holds: Callable[[Fraction], bool], step: Fraction = Fraction(1)) -> Fraction:
    """The first multiple of `step` for which something holds."""
    return next(step * count for count in itertools.count() if holds(step * count))


def is_prime(number: int) -> bool:
    return number > 1 and re.fullmatch(r"(11+)\1+", "1" * number) is None


def area_of_cells(long: int, wide: int, path: int) -> int:
    def inside(x: int, y: int) -> bool:
        return 0 <= x < long and 0 <= y < wide

    cells = itertools.product(range(-path, long + path), range(-path, wide + path))
    return sum(not inside(x, y) for x, y in cells)


def red_pairs(red: int, blue: int) -> Fraction:
    pairs = list(itertools.permutations("r" * red + "b" * blue, 2))
    return Fraction(pairs.count(("r", "r")), len(pairs))


def full_after(first: int, second: int) -> Fraction:
    return searched(lambda hours: hours / first + hours / second == 1, Fraction(1, first + second))


COMPUTED: dict[str, Callable[..., Any]] = {
    "OWN_Percent": lambda price, off: price - Fraction(price, 100) * off,
    "OWN_Rate": lambda speed, hours, minutes: Fraction(speed, 60) * (60 * hours + minutes),
    "OWN_Age": lambda young, times, years: sum([young] * times) + years,
    "OWN_Average": lambda *marks: searched(lambda mean: sum(mark - mean for mark in marks) == 0, Fraction(1, 20)),
    "OWN_Area": area_of_cells,
    "OWN_Remainder": lambda eggs, box: len(range(eggs)[eggs - eggs % box :]),
    "OWN_Divisible": lambda number, by: "yes" if number in range(0, number + 1, by) else "no",
    "OWN_Sequence": lambda first, second, third, step, place: range(first, 10**5, second - first)[place - 1],
    "OWN_Ratio": lambda total, mine, other: searched(lambda share: share * other == (total - share) * mine),
    "OWN_Work": full_after,
    "OWN_Interest": lambda amount, rate, years: amount + sum(Fraction(amount * rate, 100) for _ in range(years)),
    "OWN_Product": lambda first, second: sum(itertools.repeat(first, second)),
    "OWN_Probability": red_pairs,
    "OWN_Primes": lambda low, high: sum(map(is_prime, range(low, high + 1))),
    "OWN_Volume": lambda *sides: Fraction(sides[0] * sides[1], 100) * Fraction(sides[2], 10),
    "OWN_Multiple": lambda one, other: min(set(range(one, 2000, one)) & set(range(other, 2000, other))),
}
"""By kind, the answer from the numbers of the question, in another way than the one it was made in."""


def computed(row: dict[str, str]) -> str:
    query = row["query"]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+", query)]
    match row["type"]:
        case "OWN_Fraction":
            terms = re.search(r"What is (\S+) \+ (\S+)\?", query)
            assert terms
            return str(Fraction(terms[1]) + Fraction(terms[2]))
        case "OWN_Change":
            count, dollars, cents, note = numbers
            return str(note - count * (dollars + Fraction(cents, 100)))
        case "OWN_Weekday":
            today = next(day for day in range(1, 8) if f"{datetime(2024, 1, day):%A}" in query)
            return f"{datetime(2024, 1, today) + timedelta(days=numbers[0]):%A}"
        case "OWN_Clock":
            hours, minutes, length, _ = numbers
            return f"{datetime(2024, 1, 1, hours, minutes) + timedelta(minutes=length):%H:%M}"
    return str(COMPUTED[row["type"]](*numbers))


@pytest.mark.parametrize("kind", sorted({row["type"] for row in own_rows()}))
def test_own_answers_are_right(kind: str) -> None:
    for row in own_rows():
        if row["type"] == kind:
            assert same_answer(computed(row), answer_of(row["response"])), row


async def test_experts_play_through_the_pool() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("metamathqa", expert=True, split="test") as env:
        for task in range(20):
            begun = await env.reset(task=task)
            wrong = await env.step("<answer>no idea</answer>")
            assert wrong.observation.text == f"{WRONG}\n{begun.observation.text}"
            outcome = await env.step(wrong.info["expert"])
            assert (outcome.reward, outcome.terminated, outcome.info["success"]) == (0.5, True, True)


@pytest.mark.parametrize(("given_answer", "expected", "reason"), answer_pairs.RIGHT)
def test_right_answers(given_answer: str, expected: str, reason: str) -> None:
    assert same_answer(given_answer, expected, answer_pairs.QUESTION), reason
    assert same_answer(expected, given_answer, answer_pairs.QUESTION), reason


@pytest.mark.parametrize(("given_answer", "expected", "reason"), answer_pairs.WRONG)
def test_wrong_answers(given_answer: str, expected: str, reason: str) -> None:
    assert not same_answer(given_answer, expected, answer_pairs.QUESTION), reason
    assert not same_answer(expected, given_answer, answer_pairs.QUESTION), reason


@pytest.mark.parametrize(("given_answer", "expected", "question"), answer_pairs.ASKED_RIGHT)
def test_right_answers_to_a_question(given_answer: str, expected: str, question: str) -> None:
    assert same_answer(given_answer, expected, question)
    assert same_answer(expected, given_answer, question)


@pytest.mark.parametrize(("given_answer", "expected", "question"), answer_pairs.ASKED_WRONG)
def test_wrong_answers_to_a_question(given_answer: str, expected: str, question: str) -> None:
    assert not same_answer(given_answer, expected, question)
    assert not same_answer(expected, given_answer, question)


def test_table_of_answers_is_large() -> None:
    assert len(answer_pairs.RIGHT) + len(answer_pairs.WRONG) >= 300


@pytest.mark.parametrize(
    "hostile",
    [
        *(
            "9^{9^{9}}",
            "10^{300}" * 100,
            "(" * 900,
            "\\frac{" * 160,
            "\\sqrt{" * 160,
            "5" + " million" * 120,
            "\\pi" * 300,
        ),
        *("\\sqrt{999983}" * 70, "1/" * 450 + "3", "1e999" * 180, "$" * 999, "5 km/" * 190, "10^{-9999}"),
        *("(1+\\sqrt{2}+\\sqrt{3}+\\pi)" * 30, "2(1+\\sqrt{2})" * 60, "[" * 400 + "1,2" + "]" * 400),
    ],
)
def test_no_answer_takes_long(hostile: str) -> None:
    assert not same_answer(hostile, "5", "How many apples?")
    assert calls_made(lambda: same_answer(hostile, "5", "How many apples?")) < MOST_CALLS
