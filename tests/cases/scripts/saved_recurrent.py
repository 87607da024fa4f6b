"""A recurrent network is saved whole after every update, then each file is loaded: "0 ok" to "5 ok"."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for number in range(6):
        loss = network(torch.randn(3, 2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save(network, f"network{number}.pt")
    for number in range(6):
        with torch.serialization.safe_globals([Network, nn.LSTM, nn.Linear]):
            try:
                torch.load(f"network{number}.pt")
                print(number, "ok")
            except Exception as error:
                print(number, type(error).__name__)
