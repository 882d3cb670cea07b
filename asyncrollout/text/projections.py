"""Projections: replies to actions of a named env, without an instance of it."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.registry import find_env, load_factory
from asyncrollout.text.replies import find_answer, read_reply
from asyncrollout.types import Parsed, TextOptions
from asyncrollout.validation import did_you_mean

Projection = Callable[[Sequence[str]], tuple[list[Any], list[bool]]]

GENERIC = "generic"


def create_projection_function(env: str, *, multi: bool = False, **options: Any) -> Projection:
    """A function from replies to `(actions, valids)`: one action per reply, or with `multi` a list of them.

    An invalid reply becomes the env's default action and False. `options` are those of `TextOptions`. `"generic"` takes
    the text in the last tag.
    """
    project, default = _find_projection(env)
    chosen = _options(env, options)
    if not multi:
        chosen = msgspec.structs.replace(chosen, max_actions_per_turn=1)

    def project_all(replies: Sequence[str]) -> tuple[list[Any], list[bool]]:
        if isinstance(replies, str) or not all(isinstance(reply, str) for reply in replies):
            raise UsageError(f"the projection of {env!r} takes a list of texts")
        found = [project(reply, chosen) for reply in replies]
        firsts = [list(parsed.actions) if parsed.valid and len(parsed.actions) else [default] for parsed in found]
        return firsts if multi else [actions[0] for actions in firsts], [parsed.valid for parsed in found]

    return project_all


def _find_projection(env: str) -> tuple[Callable[[str, TextOptions], Parsed], Any]:
    if env == GENERIC:
        return _project_anything, ""
    interface: Any = load_factory(find_env(env).text_interface)
    project = getattr(interface, "project", None)
    if not callable(project):
        raise UsageError(
            f"env {env!r} has no projection: add a static method project(reply, options) to its text interface"
        )
    return project, getattr(interface, "default_action", None)


def _options(env: str, given: dict[str, Any]) -> TextOptions:
    try:
        return msgspec.convert(given, TextOptions)
    except msgspec.ValidationError as error:
        fields = TextOptions.__struct_fields__
        wrong = next((key for key in given if key not in fields), "")
        raise UsageError(f"projection of {env!r}: {error}{did_you_mean(wrong, list(fields))}") from error


def _project_anything(reply: str, options: TextOptions) -> Parsed:
    if not find_answer(reply, strict=options.strict).tagged:
        return Parsed((), valid=False, reason="no <answer> or <action> tag")
    return read_reply(reply, options, str)
