"""The texts that a model reads about an environment, piece by piece; each piece can be replaced."""

from dataclasses import dataclass, field
from typing import Any

from asyncrollout.dropin.ragen import envs
from asyncrollout.dropin.ragen.alfworld import AlfworldTemplates
from asyncrollout.dropin.ragen.settings import CustomEnv, registered_type
from asyncrollout.errors import UsageError
from asyncrollout.registry import find_env, load_factory


@dataclass(frozen=True)
class PromptTemplates:
    """Format strings, for `ContextManager(..., templates=PromptTemplates(...))`.

    The rules of an environment are the tag's `env_instruction`, then `legend`, `coordinates`, `actions` and `limit`,
    as far as they apply. They stand in the `system` message, or with `opening` before the first turn. A turn is
    `reward` of the turn before, then `turn`, whose `{body}` is the piece of that name. In single-turn mode the user's
    message is `summary`, `past` for each past turn and `current`, or `alone` if there are none; that of an environment
    of the type `alfworld` has texts of its own. With `agent_proxy.explain_invalid`, `invalid` stands in the place of
    `warning`, and says why.
    """

    system: str = "You are a helpful assistant. {rules}"
    opening: str = ""
    legend: str = "\nSymbols of the state: {symbols}"
    coordinates: str = "\nThe state lists what is where as (row, column), both counted from 0 at the top left."
    actions: str = "\nYour actions are: {actions}"
    limit: str = '\nYou can take up to {count} actions. Write " {separator} " between actions.\n'
    reward: str = "Reward:\n{reward:g}\n"
    turn: str = "\nTurn {turn}:\n{body}"
    body: str = (
        "State:\n{state}\n{warning}You have {actions_left} actions left. "
        "Always reply in exactly this form, without any other text: {format}{length}\n"
    )
    warning: str = "Your last reply had no valid action, so the state is the same as before. Please try again.\n"
    invalid: str = "Your last reply was invalid: {reason}. Please try again.\n"
    length: str = " A reply has at most {max_tokens} words (tokens)."
    think_format: str = "<think> your thoughts </think> <answer> your answer </answer>"
    answer_format: str = "<answer> your answer </answer>"
    summary: str = "{completed} turns are over. The last {shown} of them:\n---\n"
    past: str = "Turn {turn}, state:\n{state}\nTurn {turn}, your reply: {reply}\nTurn {turn}, reward: {reward}\n---\n"
    current: str = "\nThis is turn {turn}:\n{body}"
    alone: str = "Turn {turn}:\n{body}"
    alfworld: AlfworldTemplates = field(default_factory=AlfworldTemplates)


DEFAULT = PromptTemplates()


def write_rules(tag: str, custom: CustomEnv, separator: str, templates: PromptTemplates = DEFAULT) -> str:
    """Everything that a model must know before its first turn."""
    words = _Words(tag, custom)
    view = custom.option("observation_format") or "grid"
    pieces = [custom.env_instruction or ""]
    if view != "coord" and (symbols := words.symbols()):
        pieces.append(templates.legend.format(symbols=", ".join(f"{sign}: {what}" for sign, what in symbols.items())))
    if view == "coord":
        pieces.append(templates.coordinates)
    if names := words.actions():
        pieces.append(templates.actions.format(actions=", ".join(names)))
        pieces.append(templates.limit.format(count=custom.max_actions_per_traj, separator=separator))
    return "".join(pieces)


class _Words:
    """The symbols and actions of a tag's environment: its own, else those of its type."""

    def __init__(self, tag: str, custom: CustomEnv) -> None:
        self._custom = custom
        self._type = registered_type(custom.env_type, f"custom_envs.{tag}.env_type")
        env_class = envs.REGISTERED_ENVS[self._type]
        self._source: Any
        if envs.is_shipped(env_class):
            self._type = env_class.env_type
            self._source = load_factory(find_env(self._type).text_interface)
        else:
            self._source = _made_config(tag, self._type, custom)

    def symbols(self) -> dict[str, str]:
        if vocabulary := self._custom.option("grid_vocab") or getattr(self._source, "grid_vocab", None):
            return dict(vocabulary)
        cells = envs.CELLS.get(self._type, {})
        lookup = {int(code): sign for code, sign in (self._custom.option("grid_lookup") or {}).items()}
        return {lookup.get(code, sign): what for code, (sign, what) in enumerate(cells.items())}

    def actions(self) -> list[str]:
        if table := self._custom.option("action_lookup") or getattr(self._source, "action_lookup", None):
            return list(table.values())
        names = getattr(self._source, "names", ())
        return list(names) if isinstance(names, tuple) else []


def _made_config(tag: str, env_type: str, custom: CustomEnv) -> Any:
    try:
        return envs.REGISTERED_ENV_CONFIGS[env_type](**custom.env_config or {})
    except (TypeError, ValueError) as error:
        raise UsageError(f"config: custom_envs.{tag}.env_config: {error}") from error
