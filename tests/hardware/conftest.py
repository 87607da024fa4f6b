"""No test sees the devices of whoever runs it."""

import pytest


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """An empty folder of settings."""
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path / "settings" / "laptime"
