"""Which skill brings an activity on: what somebody would do who knows the room."""

from asyncrollout_envs.household.rooms import Room
from asyncrollout_envs.household.skills import Skill, command
from asyncrollout_envs.household.world import State

_WAIT = Skill("wait")


def next_skill(room: Room, state: State) -> Skill:
    """Open what must be open, carry things two at a time, close again."""
    names = [thing.name for thing in room.things]
    puts = dict(zip(names, state.things, strict=True))
    missing = [(name, where) for name, where in room.activity.goals if puts[name].on != where]
    held = [names[hand.holds] for hand in state.hands if hand.holds is not None]
    if not missing:
        wanted = [closet for closet in room.activity.shut if state.door(closet).wanted]
        return _near(room, state, Skill("close", wanted[0])) if wanted else _WAIT
    useless = [name for name in held if name not in dict(missing)]
    shut = [where for _, where in missing if state.is_shut(room.piece(where))]
    if useless or (shut and len(held) == 2):
        return _near(room, state, Skill("place", (useless or held)[0], "counter"))
    if shut:
        return _near(room, state, Skill("open", shut[0]))
    for name in held:
        if not command(room, state, placing := Skill("place", name, dict(missing)[name])).is_far:
            return placing
    apart = [name for name, _ in missing if name not in held]
    if apart and len(held) < 2:
        enclosed = [puts[name].on for name in apart if puts[name].on in dict(state.doors)]
        for closet in enclosed:
            if not state.door(closet).wanted:
                return _near(room, state, Skill("open", closet))
        return _near(room, state, Skill("grasp", apart[0]))
    return _near(room, state, Skill("place", held[0], dict(missing)[held[0]]))


def _near(room: Room, state: State, skill: Skill) -> Skill:
    """The skill, or first the way to where it can be done."""
    if command(room, state, skill).is_far:
        return Skill("go to", skill.where or skill.what)
    return skill
