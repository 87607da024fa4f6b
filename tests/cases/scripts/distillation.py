"""A frozen teacher in every training step, and an averaged copy of the student that is validated.

2 epochs of 16 training steps, then 16 validation steps of a network that no optimizer knows and that is first
called after many updates.
"""

import copy

import torch
import torch.nn.functional as F
from common import batches, digest, mlp
from torch import nn

torch.manual_seed(0)
loader = batches(128)
teacher = nn.Sequential(
    nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4)
).eval()
student = mlp()
average = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), 0.1)
for _epoch in range(2):
    for inputs, labels in loader:
        with torch.no_grad():
            taught = teacher(inputs)
        outputs = student(inputs)
        likeness = F.kl_div(outputs.log_softmax(1), taught.softmax(1), reduction="batchmean")
        loss = F.cross_entropy(outputs, labels) + likeness
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(average.parameters(), student.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
    average.eval()
    with torch.no_grad():
        for inputs, _labels in loader:
            average(inputs)
print(digest(student), digest(average))
