"""PPO: an agent whose methods call its parts, and which is never called itself.

3 rounds: 4 acts without gradients, 6 updates on minibatches. An act is one step, though it calls three parts.
"""

import torch
from common import digest
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.policy = nn.Linear(16, 4)
        self.value = nn.Linear(16, 1)

    def act(self, observation, action=None):
        hidden = torch.tanh(self.trunk(observation))
        choice = Categorical(logits=self.policy(hidden))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), self.value(hidden)


torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), 1e-3)
observation = torch.randn(8, 8)
for _round in range(3):
    seen, actions, before = [], [], []
    for _act in range(4):
        with torch.no_grad():
            action, log_probability, _ = agent.act(observation)
        seen.append(observation)
        actions.append(action)
        before.append(log_probability)
        observation = torch.tanh(observation + 0.1 * torch.randn(8, 8))
    seen, actions, before = torch.cat(seen), torch.cat(actions), torch.cat(before)
    for _epoch in range(2):
        for chosen in torch.randperm(32).split(11):
            _, log_probability, value = agent.act(seen[chosen], actions[chosen])
            reward = seen[chosen].sum(1)
            ratio = torch.exp(log_probability - before[chosen])
            loss = (value[:, 0] - reward).pow(2).mean() - (ratio * reward).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(digest(agent))
