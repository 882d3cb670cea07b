"""A household in words."""

import math
import re
from functools import cache, partial

from asyncrollout.text.replies import Projecting, read_choice, turn_format
from asyncrollout.types import Observation, Parsed, TextOptions
from asyncrollout_envs.household.env import Household
from asyncrollout_envs.household.expert import next_skill
from asyncrollout_envs.household.rooms import FURNITURE, THINGS, Point
from asyncrollout_envs.household.skills import SKILLS, Skill, command
from asyncrollout_envs.household.world import SIDES, advance, satisfied

_RULES = """\
You are a household robot with two hands, in a room with furniture: {furniture}.

Your actions are:
go to X: one step on the way to a piece of furniture or a thing, until it is right in front of you
grasp X: take a thing that is in front of you; a hand needs a step or two to get there
place X on Y, place X in Y: put down what you hold on or in a piece of furniture in front of you, in a step or two
open Y, close Y: the fridge or the cabinet in front of you, with a free hand
forward, back, turn left, turn right, wait

Each action is one step: repeat it until it is done. You have {steps} steps.
The reward is the share of the task that a step has done, 1 in all."""
_ARTICLES = re.compile(r"\b(?:the|a|an)\s", re.IGNORECASE)
_SAID = {
    "grasp": ("grasp", "pick up", "take", "grab"),
    "place": ("place", "put"),
    "go to": ("go to", "move to", "walk to"),
}
_WHERE = ("on", "onto", "in", "into")


@cache
def _choices() -> dict[str, int]:
    """Each way to say a skill, and its number."""
    said: dict[str, int] = {}
    for number, skill in enumerate(SKILLS, start=1):
        for verb in _SAID.get(skill.verb, (skill.verb,)):
            ends = [f"{skill.what} {to} {skill.where}" for to in _WHERE] if skill.where else [skill.what]
            said |= {f"{verb} {end}".strip(): number for end in ends}
    return said


class HouseholdText(Projecting[Household]):
    """Actions are skills by name; pictures come with the words if the env has them."""

    default_action = 1

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        return read_choice(reply, options, _choices(), plainly=partial(_ARTICLES.sub, ""))

    def system_prompt(self) -> str:
        rules = _RULES.format(furniture=", ".join(FURNITURE), steps=self._env.max_episode_steps)
        return f"{rules}\n\n{turn_format(self._options, 'go to cup')}"

    def describe(self, observation: dict[str, object]) -> str | Observation:
        env = self._env
        room, state = env.room, env.state
        lines = [f"Task: {env.instruction}", f"Done: {sum(satisfied(room, state))} of {len(satisfied(room, state))}"]
        for name, hand in zip(SIDES, state.hands, strict=True):
            lines.append(f"Your {name} hand: {'empty' if hand.holds is None else room.things[hand.holds].name}")
        for thing, put in zip(room.things, state.things, strict=True):
            if put.on:
                lines.append(f"{thing.name}: {_lying(put.on)}, {self._direction(put.at)}")
        for piece in room.furniture:
            closed = f" ({'open' if state.door(piece.name).wanted else 'closed'})" if piece.kind == "closet" else ""
            lines.append(f"{piece.name}{closed}: {self._direction(piece.face)}")
        lines.append(f"Steps left: {env.max_episode_steps - env.steps}")
        text = "\n".join(lines)
        if not env.images:
            return text
        return Observation(text, images=tuple(env.sense().values()), data=observation)

    def _direction(self, point: Point) -> str:
        ahead, aside, _ = self._env.state.seen(point)
        off = round(math.degrees(math.atan2(aside, ahead)) / 5) * 5
        side = "ahead" if not off else f"{abs(off)}° to the {'left' if off > 0 else 'right'}"
        return f"{math.hypot(ahead, aside):.1f} m, {side}"

    def anchor(self) -> str:
        """All that a step depends on but the steps left: the robot, its hands, things and doors, to a millimetre."""
        state = self._env.state
        robot = _exact(state.x, state.y, math.cos(state.yaw), math.sin(state.yaw))
        hands = [(*_exact(*hand.at), hand.is_open, hand.holds) for hand in state.hands]
        things = [(put.on, *_exact(*put.at)) for put in state.things]
        doors = [(door.wanted, *_exact(door.opened)) for _, door in state.doors]
        return repr((self._env.room.activity.name, robot, hands, things, doors))

    def tell(self, action: object) -> str:
        return SKILLS[action - 1].name if isinstance(action, int) else "moves"

    def solve(self) -> str:
        """As many steps as a reply may have, which the expert tries out in thought."""
        room, state, names = self._env.room, self._env.state, []
        for _ in range(self._options.max_actions_per_turn):
            skill = next_skill(room, state)
            names.append(skill.name)
            state = advance(room, state, command(room, state, skill).action)
            if all(satisfied(room, state)):
                break
        told = f" {self._options.separator} ".join(names)
        return f"<think>{_thought(next_skill(room, self._env.state))}</think><answer>{told}</answer>"


def _exact(*numbers: float) -> tuple[float, ...]:
    """Without the last digits, in which two ways to the same place differ, and without a sign of 0."""
    return tuple(round(number, 3) + 0.0 for number in numbers)


def _thought(skill: Skill) -> str:
    aim = skill.where or skill.what
    return f"The next thing to deal with is the {aim}." if aim in (*FURNITURE, *THINGS) else "All is done."


def _lying(on: str) -> str:
    return f"{'in' if on in ('fridge', 'cabinet', 'box') else 'on'} the {on}"
