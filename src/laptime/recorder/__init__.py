"""The instruments: clocks, layers, the recorder, the kernel trace, the environment."""
