"""The hooks: clocks, layers, the recorder, the kernel trace, the environment."""
