"""Whether the logprobs of an answer are those of its text, as far as that can be judged."""

import re

import msgspec

from asyncrollout.policies.openai.responses import Byte, TokenLogprob

_SPECIAL = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_/]{2,20}\]")
_UNTOLD = re.compile(
    r"\ufffd"  # a token that ends within a character
    r"|token_id:\d|<0x[0-9A-F]{2}>"  # numbers instead of texts
    r"|[\u0120\u010a\u2581]"  # spaces and line ends as vocabularies write them
)

_bytes = msgspec.json.Decoder(list[Byte] | None)


def spell(tokens: list[TokenLogprob], text: str) -> bool:
    """Whether tokens spell a text, give or take spaces and tokens that are not shown; or do not say."""
    spelt = "".join([token.token for token in tokens])
    if text in spelt:  # nearly always
        return True
    if _UNTOLD.search(spelt):
        return True
    raw = b"".join(bytes(_bytes.decode(token.bytes) or ()) or token.token.encode(errors="replace") for token in tokens)
    if not raw or _squeezed(text.encode(errors="replace")) in _squeezed(raw):
        return True
    return "".join(_SPECIAL.sub("", text).split()) in "".join(_SPECIAL.sub("", spelt).split())


def spell_nothing(tokens: list[TokenLogprob], stops: tuple[str, ...]) -> bool:
    """Whether tokens may belong to an empty text: none is shown, a stop comes first, or something that is hidden.

    What begins with a special token (`<think>`, `<tool_call>`) may be hidden by the server's parsers.
    """
    spelt = "".join([token.token for token in tokens])
    shown = spelt.strip()
    first = next((name for token in tokens if (name := token.token.strip())), "")
    if not shown or _SPECIAL.fullmatch(first) or _UNTOLD.search(spelt):
        return True
    return any(spelt.startswith(stop) or shown.startswith(stop.strip() or spelt) for stop in stops)


def _squeezed(text: bytes) -> bytes:
    return b"".join(text.split())
