"""Text interfaces: how replies are read as actions, and any Gymnasium space as text.

For authors of envs, import them from their modules (nothing is imported here, since every worker would pay for it):

    replies.read_reply                        the actions of a reply, by a function that reads one action's text
    replies.read_choice                       the same for actions that have names ("up", "down")
    replies.find_answer                       the part of a reply that states the answer: tags, or prose outside <think>
    stated.find_stated                        the answer that a text states: boxed, after "answer is", or its last line
    stated.undress                            a text without bold, quotes, math signs and closing punctuation around it
    replies.turn_format                       the paragraph of a system prompt that says how to reply
    replies.after_invalid                     a text after a line that says why the last reply was invalid
    replies.Projecting                        a base class for text interfaces that need no env to read a reply
    projections.create_projection_function    replies to actions without an env, by the name of the env
    spaces.SpaceText                          the text interface of an env that has none, made from its spaces
"""
