"""A script that profiles itself, with stacks and modules, as torch's tutorial does. 16 steps."""

import torch
from common import batches, digest, mlp
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(0)
network = mlp()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
traces = []
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=lambda trace: traces.append(len(trace.key_averages()) > 5),
    record_shapes=True,
    with_stack=True,
    with_modules=True,
) as profiler:
    for inputs, labels in batches(128):
        loss = cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profiler.step()
print(traces, digest(network))
