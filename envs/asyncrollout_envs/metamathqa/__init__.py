"""MetaMathQA: `answers.py` compares answers, `word_problems.py` made our own problems, `env.py` asks them."""

from asyncrollout_envs.metamathqa.env import OWN_PROBLEMS, SPEC, MetaMathQA, MetaMathQAText

__all__ = ["OWN_PROBLEMS", "SPEC", "MetaMathQA", "MetaMathQAText"]
