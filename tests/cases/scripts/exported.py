"""A network that is traced, scripted and exported between its epochs: the graphs are those of torch alone."""

import torch
from common import batches, digest, mlp
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
network = mlp()
optimizer = torch.optim.SGD(network.parameters(), 0.1)


def epoch():
    for inputs, labels in batches():
        loss = cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return inputs


inputs = epoch()
print([str(node) for node in torch.fx.symbolic_trace(network).graph.nodes])
epoch()
print([str(node) for node in torch.export.export(network, (inputs,)).graph.nodes])
epoch()
traced, scripted = torch.jit.trace(network, inputs), torch.jit.script(network)
print(traced.inlined_graph, scripted.inlined_graph)
with torch.no_grad():
    print(float((traced(inputs) - scripted(inputs)).abs().sum()))
epoch()
print(digest(network))
