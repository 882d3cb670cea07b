"""Agents of torch for `seeds_metarl_torch.py`: a network without a memory and one with, both drawing their actions."""

from itertools import pairwise

import torch


class Mlp(torch.nn.Module):
    """Three layers of 128, and a normal distribution through tanh, as SAC has it."""

    def __init__(self, inputs, outputs, hidden=128):
        super().__init__()
        torch.manual_seed(0)
        sizes = [inputs, hidden, hidden, hidden]
        layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
        self.layers = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())])
        self.mean = torch.nn.Linear(hidden, outputs)
        self.log_std = torch.nn.Linear(hidden, outputs)

    def act(self, obs, deterministic=False):
        return self.drawn(self.layers(obs), deterministic=deterministic), None, None, None

    def drawn(self, features, *, deterministic):
        mean, std = self.mean(features), self.log_std(features).clamp(-20, 2).exp()
        return torch.tanh(mean if deterministic else torch.distributions.Normal(mean, std).sample()) * 0.1


class Gru(Mlp):
    """A recurrent layer of 128 before them."""

    def __init__(self, inputs, outputs, hidden=128):
        super().__init__(hidden, outputs, hidden)
        self.outputs = outputs
        self.cell = torch.nn.GRU(inputs + outputs + 1, hidden)

    def get_initial_info(self):
        return torch.zeros(1, self.outputs), torch.zeros(1, 1), torch.zeros(1, 1, self.cell.hidden_size)

    def act(self, prev_internal_state, prev_action, reward, obs, deterministic=False):
        features, state = self.cell(torch.cat([obs, prev_action, reward], -1)[None], prev_internal_state)
        return (self.drawn(self.layers(features[0]), deterministic=deterministic), None, None, None), state
