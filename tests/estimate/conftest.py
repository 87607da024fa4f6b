"""No test sees the calibrations and devices of whoever runs it."""

import pytest


@pytest.fixture(autouse=True)
def calibrations(monkeypatch, tmp_path_factory):
    """An empty folder for the user's calibrations; no devices of the user's own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)
    folder = home / "data" / "laptime" / "calibrations"
    folder.mkdir(parents=True)
    return folder
