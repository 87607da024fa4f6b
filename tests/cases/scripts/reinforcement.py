"""REINFORCE: the policy is called once per move, and the environment takes 20 ms a move.

6 training steps of 5 moves. The environment is the host's time.
"""

import time

import torch
from common import digest, mlp
from torch.distributions import Categorical

torch.manual_seed(0)
policy = mlp(4, 16, 2)
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
for _episode in range(6):
    log_probabilities = []
    for _move in range(5):
        choice = Categorical(logits=policy(torch.randn(1, 4)))
        action = choice.sample()
        log_probabilities.append(choice.log_prob(action))
        time.sleep(0.02)  # the environment takes the action
    loss = -torch.cat(log_probabilities).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(digest(policy))
