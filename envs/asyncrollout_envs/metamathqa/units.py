"""Units of measure: their names, and whether two quantities of them are the same."""

import re
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
        ("wk week", "604800"),
    ),
    "months": (("month", "1"), ("yr year", "12")),
    "volume": (
        ("ml milliliter millilitre", "1/1000"),
        ("cl centiliter centilitre", "1/100"),
        ("l liter litre", "1"),
        ("tsp teaspoon", "0.00492892159375"),
        ("tbsp tablespoon", "0.01478676478125"),
        ("cup", "0.2365882365"),
        ("pt pint", "0.473176473"),
        ("qt quart", "0.946352946"),
        ("gal gallon", "3.785411784"),
    ),
    "dollars": (("$ dollar usd buck", "1"), ("cent ¢ penny pennies", "1/100"), ("dime", "1/10"), ("nickel", "1/20")),
    "euros": (("€ euro eur", "1"),),
    "pounds sterling": (("£ gbp", "1"), ("pence", "1/100")),
    "yen": (("¥ yen", "1"),),
    "rupees": (("₹ rupee", "1"),),
    "share": (("% percent", "1"),),
    "angle": (("° degree deg", "1"), ("radian", "1")),  # never converted: see _NOT_CONVERTED
    "celsius": (("celsius centigrade", "1"),),
    "fahrenheit": (("fahrenheit", "1"),),
    "area": (("acre", "1"), ("hectare", "1")),
    "electric": (("volt", "1"), ("amp ampere", "1"), ("watt", "1"), ("ohm", "1")),
    "data": (("bit", "1"), ("byte", "8"), ("kb kilobyte", "8000"), ("mb megabyte", "8000000")),
    "count": (("unit", "1"), ("square", "1"), ("cubic", "1")),
}
_NOT_CONVERTED = frozenset(("angle", "area", "electric", "count"))
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

_QUOTIENTS = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour", "kmph": "km/hour", "mpg": "mile/gallon"}
_QUOTIENT = re.compile(rf"\b(?:{'|'.join(_QUOTIENTS)})\b")
_PER_CENT = re.compile(r"\bper cent\b")
_PER = re.compile(r" ?/ ?| (?:per|an?|every|each) ")
_POWER = re.compile(r"(?: ?\^ ?\{? ?([23]) ?\}?| (squared|cubed)|([²³]))$")
_POWERS = {"2": 2, "3": 3, "squared": 2, "cubed": 3, "²": 2, "³": 3}
_SQUARE = re.compile(r"(square|sq\.?|cubic|cu\.?) (?=\S)")
_DEGREES_OF = re.compile(r"(?:degrees? |° ?)(?:(?=celsius|fahrenheit|centigrade)|[cf]$)")
_SCALES_OF_HEAT = {"c": "celsius", "f": "fahrenheit"}
_WORD = re.compile(r"[^\W\d_]+")
_HOW_MANY = re.compile(r"\bhow many((?: [^\W\d_]+){1,3})")
_COUNTABLE = frozenset(("half", "halve", "third", "quarter", "fifth", "tenth", "time", "point")) | frozenset(
    ("hundred", "thousand", "million", "billion", "trillion", "dozen", "lakh", "crore")
)
"""What changes a number beside it, unless it is what a question counts."""

# A letter that stands alone, but not after a number as in "12 m", nor as a unit in "km/h", "in m" or "Tom's"; or after
# a number as a term of a sum, as in "2m + 3m".
_VARIABLE = re.compile(
    r"(?<![\w'\u2019/])(?<![0-9][ -])(?<!\bin )([a-z])(?![\w'\u2019])(?!(?<=\([a-z])\))|(?<=[0-9])([a-z])(?= ?[+*^=])"
)


class Asked(msgspec.Struct, frozen=True):
    """Of a question: its words, singular; those of them that it counts, as in "how many dozen"; letters for numbers."""

    nouns: frozenset[str] = frozenset()
    counted: frozenset[str] = frozenset()
    letters: frozenset[str] = frozenset()


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
    if (unit.dimensions and _names_no_unit(other.nouns)) or (other.dimensions and _names_no_unit(unit.nouns)):
        return None
    if unit.nouns and other.nouns and not (unit.nouns <= other.nouns or other.nouns <= unit.nouns):
        return None
    return Fraction(1)


def _names_no_unit(nouns: frozenset[str]) -> bool:
    return bool(nouns) and not nouns & _UNITS.keys()


def read_unit(text: str, asked: Asked, *, glued: bool = False) -> Unit | None:
    """The unit that a text in lower case is; None if it is none.

    `glued` to its number, only a unit of the list is one. A letter that the question uses for a number is none.
    """
    text = _DEGREES_OF.sub(lambda found: _SCALES_OF_HEAT.get(found[0][-1], ""), text.strip(" ."))
    text = _QUOTIENT.sub(lambda found: _QUOTIENTS[found[0]], _PER_CENT.sub("percent", text))
    if not text:
        return Unit()
    if text in asked.letters:
        return None
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    for place, part in enumerate(_PER.split(text)):
        found = _listed(part)
        if found is None:
            return None if glued else _nouns(text, asked)
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


def _nouns(text: str, asked: Asked) -> Unit | None:
    words = _WORD.findall(text)
    stems = frozenset(map(stem, words))
    if " ".join(words) != text or any(_is_no_noun(word) and stem(word) not in asked.counted for word in words):
        return None
    return Unit(nouns=stems) if stems and stems <= asked.nouns else None


def _is_no_noun(word: str) -> bool:
    return word in _NO_NOUNS or len(word) == 1


def asked_by(question: str) -> Asked:
    """What a question says about the words and letters that may stand after a number."""
    question = question.casefold()
    counted = (stem(word) for found in _HOW_MANY.findall(question) for word in found.split())
    return Asked(
        frozenset(map(stem, _WORD.findall(question))),
        frozenset(word for word in counted if word in _COUNTABLE),
        frozenset(found[1] or found[2] for found in _VARIABLE.finditer(question)),
    )


def stem(word: str) -> str:
    """Singular and plural are one."""
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
