"""What writes and checks the documentation; nothing of it is installed."""
