"""Units of measure: their names, and whether two quantities of them are the same."""

import re
from collections.abc import Set as AbstractSet
from fractions import Fraction

import msgspec

# dimension: (names, how many of the base unit one of them is)
_TABLE: dict[str, tuple[tuple[str, str], ...]] = {
    "length": (
        ("mm millimeter millimetre", "1/1000"),
        ("cm centimeter centimetre", "1/100"),
        ("dm decimeter decimetre", "1/10"),
        ("m meter metre", "1"),
        ("km kilometer kilometre", "1000"),
        ("in inch inches", "0.0254"),
        ("ft foot feet", "0.3048"),
        ("yd yard", "0.9144"),
        ("mi mile", "1609.344"),
    ),
    "mass": (
        ("mg milligram", "1/1000"),
        ("g gram", "1"),
        ("kg kilogram kilo", "1000"),
        ("tonne", "1000000"),
        ("oz ounce", "28.349523125"),
        ("lb pound", "453.59237"),
    ),
    "time": (
        ("ms millisecond", "1/1000"),
        ("s sec second", "1"),
        ("min minute", "60"),
        ("h hr hour", "3600"),
        ("day", "86400"),
        ("week", "604800"),
    ),
    "months": (("month", "1"), ("yr year", "12")),
    "volume": (
        ("ml milliliter millilitre", "1/1000"),
        ("cl centiliter centilitre", "1/100"),
        ("l liter litre", "1"),
        ("tsp teaspoon", "0.00492892159375"),
        ("tbsp tablespoon", "0.01478676478125"),
        ("cup", "0.2365882365"),
        ("pint", "0.473176473"),
        ("quart", "0.946352946"),
        ("gal gallon", "3.785411784"),
    ),
    "dollars": (("$ dollar usd buck", "1"), ("cent penny pennies", "1/100"), ("dime", "1/10"), ("nickel", "1/20")),
    "euros": (("€ euro eur", "1"),),
    "pounds sterling": (("£ gbp", "1"), ("pence", "1/100")),
    "yen": (("¥ yen", "1"),),
    "rupees": (("₹ rupee", "1"),),
    "share": (("% percent", "1"),),
    "angle": (("° degree", "1"), ("radian", "1")),  # never converted: see _NOT_CONVERTED
    "celsius": (("celsius centigrade", "1"),),
    "fahrenheit": (("fahrenheit", "1"),),
    "area": (("acre", "1"), ("hectare", "1")),
    "speed": (("mph", "1"), ("kph kmh", "1")),
    "electric": (("volt", "1"), ("amp ampere", "1"), ("watt", "1"), ("ohm", "1")),
    "data": (("bit", "1"), ("byte", "8"), ("kb kilobyte", "8000"), ("mb megabyte", "8000000")),
    "count": (("unit", "1"), ("square", "1"), ("cubic", "1")),
}
_NOT_CONVERTED = frozenset(("angle", "area", "speed", "electric", "count"))
_IRREGULAR = frozenset(("feet", "inches", "pennies", "pence", "celsius", "s", "ms", "$"))
_UNITS = {
    name: (f"{dimension}: {names}" if dimension in _NOT_CONVERTED else dimension, Fraction(factor))
    for dimension, rows in _TABLE.items()
    for names, factor in rows
    for name in names.split()
}

_NO_NOUNS = frozenset(
    re.findall(
        r"\S+",
        "a an the of and or to from not no negative minus plus over times by out point half halves third "
        "thirds quarter quarters squared cubed am pm sin cos tan cot sec csc log ln exp sqrt pi root power "
        "mod modulo factorial is are at than between about approximately least most hundred thousand million "
        "billion trillion dozen lakh crore remainder more less fewer equal equals ",
    )
)
"""Words of a question that may change a number beside them."""

_PER = re.compile(r" ?/ ?| (?:per|an?|every|each) ")
_POWER = re.compile(r"(?: ?\^ ?\{? ?([23]) ?\}?| (squared|cubed)|([²³]))$")
_POWERS = {"2": 2, "3": 3, "squared": 2, "cubed": 3, "²": 2, "³": 3}
_SQUARE = re.compile(r"(square|sq\.?|cubic|cu\.?) (?=\S)")
_DEGREES_OF = re.compile(r"(?:degrees? |° ?)(?:(?=celsius|fahrenheit|centigrade)|[cf]$)")
_SCALES_OF_HEAT = {"c": "celsius", "f": "fahrenheit"}
_WORD = re.compile(r"[^\W\d_]+")


class Unit(msgspec.Struct, frozen=True):
    """What a number counts: dimensions with their powers and a factor, or nouns of the question."""

    dimensions: tuple[tuple[str, int], ...] = ()
    factor: Fraction = Fraction(1)
    nouns: frozenset[str] = frozenset()


def comparable(unit: Unit, other: Unit) -> Fraction | None:
    """By what to multiply a number of `unit` to compare it with one of `other`; None if they never are the same.

    Units count where both numbers have one.
    """
    if unit.dimensions and other.dimensions:
        return unit.factor / other.factor if unit.dimensions == other.dimensions else None
    if unit.nouns and other.nouns and not (unit.nouns <= other.nouns or other.nouns <= unit.nouns):
        return None
    return Fraction(1)


def read_unit(text: str, nouns: AbstractSet[str], *, glued: bool = False) -> Unit | None:
    """The unit that a text in lower case is; None if it is none. `nouns` are words that the question has.

    `glued` to its number, only a unit of the list is one.
    """
    text = _DEGREES_OF.sub(lambda found: _SCALES_OF_HEAT.get(found[0][-1], ""), text.strip(" ."))
    if not text:
        return Unit()
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    for place, part in enumerate(_PER.split(text)):
        found = _listed(part)
        if found is None:
            return None if glued else _nouns(text, nouns)
        (dimension, one), power = found
        power = power if place == 0 else -power
        dimensions[dimension] = dimensions.get(dimension, 0) + power
        factor *= one**power
    return Unit(tuple(sorted(dimensions.items())), factor)


def _listed(part: str) -> tuple[tuple[str, Fraction], int] | None:
    """A unit of the list, and its power."""
    part, power = part.strip(), 1
    if squared := _SQUARE.match(part):
        part, power = part[squared.end() :], 2 if squared[1].startswith("s") else 3
    if raised := _POWER.search(part):
        part, power = part[: raised.start()], _POWERS[raised[1] or raised[2] or raised[3]]
    unit = _UNITS.get(part) or (_UNITS.get(part[:-1]) if part.endswith("s") and part not in _IRREGULAR else None)
    return None if unit is None else (unit, power)


def _nouns(text: str, known: AbstractSet[str]) -> Unit | None:
    words = _WORD.findall(text)
    if " ".join(words) != text or any(word in _NO_NOUNS or len(word) == 1 for word in words):
        return None
    stems = frozenset(map(stem, words))
    return Unit(nouns=stems) if stems and stems <= known else None


def nouns_of(question: str) -> frozenset[str]:
    """The words of a question that may stand after a number, in the form that `read_unit` compares."""
    return frozenset(map(stem, _WORD.findall(question.casefold())))


def stem(word: str) -> str:
    """Singular and plural are one."""
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
