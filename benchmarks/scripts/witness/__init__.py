"""What every script's process starts with, bare or recorded."""
