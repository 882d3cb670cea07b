"""Runs a program of RAGEN's with other import lines: `python ragen.py <sources> <program> [drop=Class ...] [args ...]`.

The program is copied, with the folders that it expects around it, into the working directory. Its import lines of
RAGEN's environments and managers become ours, and a class that it defines itself, and that is ours to replace, is
dropped (`drop=`). Everything else is RAGEN's own: its main block, its wrappers of models, its configuration files,
Hydra, and verl's `DataProto`.

Stand-ins, for what cannot be here: `vllm` (a scripted model that reads the prompt's text), the tokenizer's vocabulary
(bytes; the class is that of transformers, with Qwen's chat format), three puzzles for Countdown's data file, and the
clients of hosted models and of wandb, which are imported and never called.
"""

import ast
import random
import re
import sys
import types
from pathlib import Path
from typing import Any

OURS = "from asyncrollout.dropin.ragen import"

_OF_RAGEN = {
    "ragen.env": ("REGISTERED_ENVS", "REGISTERED_ENV_CONFIGS"),
    "ragen.llm_agent.agent_proxy": ("LLMAgentProxy",),
    "ragen.llm_agent.ctx_manager": ("ContextManager",),
    "ragen.llm_agent.es_manager": ("EnvStateManager",),
}
_RENAMED = {"verl.verl.protocol": "verl.protocol"}  # verl as a submodule, and as a package

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ImportLines(ast.NodeTransformer):
    """Other import lines, and no class that these replace."""

    def __init__(self, package: str, dropped: set[str]) -> None:
        self._package = package
        self._dropped = dropped

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        name = node.module or ""
        if node.level:
            name = f"{self._package}.{name}"
        name = _RENAMED.get(name, name)
        if name in _OF_RAGEN and {alias.name for alias in node.names} <= {*_OF_RAGEN[name]}:
            name = "asyncrollout.dropin.ragen"
        return ast.ImportFrom(module=name, names=node.names, level=0)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        if node.name not in self._dropped:
            return node
        return ast.ImportFrom(module="asyncrollout.dropin.ragen", names=[ast.alias(node.name)], level=0)


class ScriptedModel:
    """In place of vLLM's engine: now and then it thinks too long, else it names one or two of the actions it reads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._random = random.Random(0)
        self.calls = 0

    def generate(self, texts: list[str], sampling_params: Any) -> list[Any]:
        self.calls += 1
        return [_Output(self._reply(text), sampling_params) for text in texts]

    def _reply(self, prompt: str) -> str:
        assert prompt.endswith(("<think>", "<answer>")), prompt[-80:]
        named = re.findall(r"(?i)actions are: ?\n?([\w, ']+)", prompt)
        actions = named[0].split(", ") if named else ["1"]
        chosen = " || ".join(self._random.choices(actions, k=self._random.randint(1, 2)))
        if self._random.random() < 0.1:
            return "I wonder what to do"
        return f"{chosen}</answer>" if prompt.endswith("<answer>") else f"This way.</think><answer>{chosen}</answer>"


class _Output:
    def __init__(self, text: str, sampling: Any) -> None:
        logprob = types.SimpleNamespace(logprob=-0.5)
        logprobs = [{0: logprob}] * 3 if sampling.logprobs else None
        self.outputs = [types.SimpleNamespace(text=text, logprobs=logprobs, token_ids=[0] * 3)]


class Sampling:
    def __init__(self, logprobs: int | None = None, **options: Any) -> None:
        self.logprobs = logprobs
        self.options = options


def stand_in(name: str, **values: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(values)
    sys.modules[name] = module


def install_stand_ins() -> None:
    import transformers

    transformers.AutoTokenizer.from_pretrained = make_tokenizer
    stand_in("vllm", LLM=ScriptedModel, SamplingParams=Sampling)
    stand_in("wandb")
    stand_in("anthropic", AsyncAnthropic=None)
    stand_in("openai", AsyncOpenAI=None)
    stand_in("together", AsyncTogether=None)


def make_tokenizer(*_: Any, **__: Any) -> Any:
    """Transformers' class with bytes for a vocabulary."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        name_or_path="Qwen/Qwen2.5-0.5B-Instruct",
    )
    tokenizer.chat_template = _CHATML
    return tokenizer


def make_puzzles(path: Path) -> None:
    """A few of Countdown's puzzles, in place of the file that RAGEN downloads."""
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True)
    numbers = [[3, 5, 2], [4, 6, 7], [1, 2, 9]]
    parquet.write_table(pyarrow.table({"nums": numbers, "target": [sum(row) for row in numbers]}), path)


def lay_out(sources: Path, program: str, dropped: set[str]) -> Path:
    """RAGEN's folders in the working directory: the program with other import lines, configurations as they are."""
    import verl

    verls = Path(verl.__file__).parent / "trainer" / "config"
    configs = Path("config")
    configs.mkdir()
    for file in (sources / "config").glob("*.yaml"):
        if file.exists():  # else a link into verl, whose sources RAGEN has as a submodule
            (configs / file.name).symlink_to(file)
    if not (configs / "ppo_trainer.yaml").exists():
        (configs / "ppo_trainer.yaml").symlink_to(verls / "_generated_ppo_trainer.yaml")
    Path("verl/verl/trainer").mkdir(parents=True)
    Path("verl/verl/trainer/config").symlink_to(verls)
    make_puzzles(Path("data/countdown/train.parquet"))
    target = Path(program)
    target.parent.mkdir(parents=True, exist_ok=True)
    Path("ragen").mkdir(exist_ok=True)
    package = ".".join(target.parent.parts)
    tree = ImportLines(package, dropped).visit(ast.parse((sources / program).read_text()))
    target.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return target.resolve()


def main() -> None:
    sources, program, *rest = sys.argv[1:]
    dropped = {word.removeprefix("drop=") for word in rest if word.startswith("drop=")}
    arguments = [word for word in rest if not word.startswith("drop=")]
    install_stand_ins()
    path = lay_out(Path(sources), program, dropped)
    sys.path.insert(0, sources)
    if path.name.startswith("test_") and "__main__" not in path.read_text():
        import pytest

        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(path.parent), str(path)]))
    sys.argv = [str(path), *arguments]
    code = compile(path.read_text(), str(path), "exec")
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __name__="__main__")
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
