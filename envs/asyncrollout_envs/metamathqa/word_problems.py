"""Makes `problems.json`, the problems that `metamathqa` has without a file: ten of each of twenty kinds.

`python -m asyncrollout_envs.metamathqa.word_problems` rewrites the file. Problems of a kind stand together, so that
each split has all kinds (see `datafiles`).
"""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import comb, gcd, lcm
from typing import NamedTuple

import numpy as np

from asyncrollout_envs.metamathqa.env import OWN_PROBLEMS
from asyncrollout_envs.seeding import generator

Draw = Callable[[int, int], int]
"""An integer between two others, both included."""


class Made(NamedTuple):
    question: str
    solution: str
    answer: str


PER_KIND = 10
_NAMES = ("Amara", "Ben", "Chiara", "Dmitri", "Elif", "Farid", "Grace", "Hiro", "Ines", "Jonas", "Keiko", "Luis")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def percent(draw: Draw) -> Made:
    price, off = draw(4, 40) * 5, draw(1, 9) * 5
    now = Fraction(price * (100 - off), 100)
    return Made(
        f"A jacket costs ${price}. In a sale its price is lowered by {off}%. How many dollars does it cost then?",
        f"The price falls to {100 - off}% of ${price}, which is {price} * {100 - off} / 100 = {_decimal(now)}.",
        _decimal(now),
    )


def rate(draw: Draw) -> Made:
    speed, hours, quarters = draw(5, 30) * 4, draw(2, 6), draw(1, 3)
    distance = speed * (4 * hours + quarters) // 4
    return Made(
        f"A train travels at {speed} kilometres per hour for {hours} hours and {quarters * 15} minutes. "
        "How many kilometres does it travel?",
        f"{quarters * 15} minutes are {quarters}/4 of an hour, so it travels "
        f"{speed} * {hours} + {speed} * {quarters}/4 = {distance} kilometres.",
        str(distance),
    )


def fraction(draw: Draw) -> Made:
    first, second = (Fraction(draw(1, 8), draw(3, 12)) for _ in range(2))
    total = first + second
    return Made(
        f"What is {first} + {second}? Give the answer as a fraction in lowest terms, or as an integer.",
        f"Over the common denominator {lcm(first.denominator, second.denominator)}, the sum is {total}.",
        _latex(total),
    )


def age(draw: Draw) -> Made:
    child, parent = _two_names(draw)
    young, times, years = draw(4, 12), draw(3, 4), draw(2, 9)
    old = times * young
    return Made(
        f"{child} is {young} years old, and {parent} {times} times as old. How old will {parent} be in {years} years?",
        f"{parent} is {times} * {young} = {old} years old now, and {old} + {years} = {old + years} in {years} years.",
        str(old + years),
    )


def change(draw: Draw) -> Made:
    name, _ = _two_names(draw)
    count, cents, note = draw(2, 6), draw(11, 79) * 5, 50
    left = note * 100 - count * cents
    return Made(
        f"{name} buys {count} notebooks for ${_cents(cents)} each and pays with a ${note} note. "
        "How much change is due? Give dollars and cents.",
        f"The notebooks cost {count} * ${_cents(cents)} = ${_cents(count * cents)}, "
        f"so the change is ${note} - ${_cents(count * cents)} = ${_cents(left)}.",
        f"${_cents(left)}",
    )


def average(draw: Draw) -> Made:
    marks = [draw(40, 100) for _ in range(draw(4, 5))]
    mean = Fraction(sum(marks), len(marks))
    return Made(
        f"A pupil's marks are {', '.join(map(str, marks))}. What is their average, as a decimal number?",
        f"The sum is {sum(marks)}, and {sum(marks)} / {len(marks)} = {_decimal(mean)}.",
        _decimal(mean),
    )


def area(draw: Draw) -> Made:
    length, width, path = draw(8, 30), draw(5, 20), draw(1, 3)
    outer = (length + 2 * path) * (width + 2 * path)
    return Made(
        f"A rectangular garden is {length} m long and {width} m wide. A path {path} m wide runs all around it, outside "
        "the garden. What is the area of the path in square metres?",
        f"Garden and path together cover {length + 2 * path} * {width + 2 * path} = {outer} square metres. Without the "
        f"garden, {outer} - {length * width} = {outer - length * width} are left.",
        f"{outer - length * width}\\text{{ square metres}}",
    )


def remainder(draw: Draw) -> Made:
    eggs, box = draw(150, 900), draw(7, 18)
    return Made(
        f"A farm packs {eggs} eggs into boxes of {box}, as many as it can fill. How many eggs are left over?",
        f"{eggs // box} boxes hold {eggs // box} * {box} = {eggs // box * box} eggs, and {eggs % box} are left over.",
        str(eggs % box),
    )


def weekday(draw: Draw) -> Made:
    today, days = draw(0, 6), draw(10, 200)
    then = _DAYS[(today + days) % 7]
    return Made(
        f"Today is {_DAYS[today]}. What day of the week will it be in {days} days?",
        f"{days} days are {days // 7} weeks and {days % 7} days, and {days % 7} days after {_DAYS[today]} is {then}.",
        then,
    )


def divisible(draw: Draw) -> Made:
    divisor, factor, extra = draw(6, 19), draw(100, 600), draw(0, 1) * draw(1, 5)
    number = divisor * factor + extra
    return Made(
        f"Is {number:,} divisible by {divisor}? Answer yes or no.",
        f"{number:,} = {divisor} * {factor} + {extra}, so the remainder is {extra}.",
        "No" if extra else "Yes",
    )


def sequence(draw: Draw) -> Made:
    first, step, place = draw(1, 40), draw(3, 17), draw(20, 120)
    term = first + (place - 1) * step
    return Made(
        f"A sequence begins with {first}, {first + step}, {first + 2 * step}, and each term is {step} more than the "
        f"one before. What is term number {place}?",
        f"It is {place - 1} steps from the first: {first} + {place - 1} * {step} = {term}.",
        str(term),
    )


def ratio(draw: Draw) -> Made:
    one, other = _two_names(draw)
    parts, other_parts, unit = draw(2, 7), draw(2, 7), draw(12, 90)
    total = (parts + other_parts) * unit
    return Made(
        f"{one} and {other} share ${total} in the ratio {parts}:{other_parts}. How many dollars does {one} get?",
        f"There are {parts + other_parts} parts of {total} / {parts + other_parts} = {unit} dollars, "
        f"and {one} gets {parts} of them: {parts * unit}.",
        f"\\${parts * unit}",
    )


def work(draw: Draw) -> Made:
    fast = draw(2, 9)
    slow = fast + draw(1, 8)
    time = Fraction(fast * slow, fast + slow)
    return Made(
        f"One tap fills a tank in {fast} hours, another one in {slow} hours. In how many hours do both together fill "
        "it? Give the answer as a fraction in lowest terms, or as an integer.",
        f"Together they fill 1/{fast} + 1/{slow} = {1 / time} of the tank in an hour, so it takes {time} hours.",
        _latex(time),
    )


def interest(draw: Draw) -> Made:
    amount, rate, years = draw(12, 90) * 100, draw(2, 9), draw(2, 8)
    end = amount + amount // 100 * rate * years
    return Made(
        f"${amount:,} earn simple interest of {rate}% a year. How many dollars are there after {years} years?",
        f"Each year adds {amount // 100 * rate:,}, so there are {amount:,} + {end - amount:,} = {end:,} in the end.",
        f"${end:,}",
    )


def product(draw: Draw) -> Made:
    first, second = draw(101, 989), draw(23, 98)
    tens = second // 10 * 10
    return Made(
        f"What is {first} * {second}?",
        f"{first} * {tens} = {first * tens:,} and {first} * {second - tens} = {first * (second - tens):,}, "
        f"together {first * second:,}.",
        f"{first * second:,}",
    )


def probability(draw: Draw) -> Made:
    red, blue = draw(3, 9), draw(2, 9)
    both = Fraction(comb(red, 2), comb(red + blue, 2))
    return Made(
        f"A bag holds {red} red and {blue} blue marbles. Two are drawn at random, without putting the first one back. "
        "What is the probability that both are red? Give a fraction in lowest terms.",
        f"{comb(red, 2)} of {comb(red + blue, 2)} pairs are red, and {comb(red, 2)}/{comb(red + blue, 2)} = {both}.",
        f"${_latex(both)}$",
    )


def primes(draw: Draw) -> Made:
    low = draw(2, 60)
    high = low + draw(15, 40)
    found = [number for number in range(low, high + 1) if number > 1 and all(number % d for d in range(2, number))]
    return Made(
        f"How many prime numbers are there from {low} to {high}, both included?",
        f"They are {', '.join(map(str, found))}: {len(found)} in all.",
        str(len(found)),
    )


def clock(draw: Draw) -> Made:
    start, length = draw(10 * 60, 20 * 60), draw(26, 39) * 5
    end = start + length
    return Made(
        f"A film begins at {start // 60}:{start % 60:02} and lasts {length} minutes. When does it end? "
        "Give the time on the 24-hour clock.",
        f"That is {length // 60} hours and {length % 60} minutes, so the end is at {end // 60}:{end % 60:02}.",
        f"{end // 60}:{end % 60:02}",
    )


def volume(draw: Draw) -> Made:
    length, width, height = draw(12, 60), draw(10, 40), draw(8, 35)
    litres = Fraction(length * width * height, 1000)
    return Made(
        f"A fish tank is {length} cm long, {width} cm wide and {height} cm high inside. How many litres does it hold? "
        "Give a decimal number.",
        f"It holds {length} * {width} * {height} = {length * width * height} cubic centimetres, "
        f"and 1,000 of them are a litre: {_decimal(litres)} litres.",
        f"\\boxed{{{_decimal(litres)}}}",
    )


def multiple(draw: Draw) -> Made:
    first, second = draw(6, 20), draw(21, 36)
    return Made(
        f"Two buses leave a station together. One of them leaves every {first} minutes, the other every {second}. "
        "After how many minutes do they next leave together?",
        f"That is the least common multiple of {first} and {second}: {first} * {second} / {gcd(first, second)} = "
        f"{lcm(first, second)}.",
        f"{lcm(first, second)} minutes",
    )


KINDS = (
    percent,
    rate,
    fraction,
    age,
    change,
    average,
    area,
    remainder,
    weekday,
    divisible,
    sequence,
    ratio,
    work,
    interest,
    product,
    probability,
    primes,
    clock,
    volume,
    multiple,
)


def make_rows() -> list[dict[str, str]]:
    """All problems, in the public data set's form; no question twice."""
    return [row for number, make in enumerate(KINDS) for row in _rows_of(make, generator(number, "train"))]


def _rows_of(make: Callable[[Draw], Made], rng: np.random.Generator) -> Iterator[dict[str, str]]:
    asked: set[str] = set()
    while len(asked) < PER_KIND:
        made = make(lambda low, high: int(rng.integers(low, high + 1)))
        if made.question not in asked:
            asked.add(made.question)
            response = f"{made.solution}\nThe answer is: {made.answer}"
            yield {"query": made.question, "response": response, "type": f"OWN_{make.__name__.capitalize()}"}


def file_text() -> str:
    """The content of the file, a row to a line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in make_rows()) + "\n]\n"


def _two_names(draw: Draw) -> tuple[str, str]:
    first = draw(0, len(_NAMES) - 1)
    return _NAMES[first], _NAMES[(first + draw(1, len(_NAMES) - 1)) % len(_NAMES)]


def _decimal(value: Fraction) -> str:
    return f"{float(value):.10g}"


def _cents(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _latex(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


if __name__ == "__main__":
    OWN_PROBLEMS.write_text(file_text())
