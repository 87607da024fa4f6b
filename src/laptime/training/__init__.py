"""Training: networks, data, the loop, real distributed strategies and experiments."""
