"""A real file system of a few hundred kilobytes: it fills up, and it can be made read-only."""

import subprocess
from pathlib import Path

MIB = 2**20


class SmallDisk:
    """A tmpfs of its own."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True, capture_output=True
        )

    def fill(self, leave: int = 0) -> None:
        """Take every byte that is left, but for `leave`."""
        with open(self.path / "ballast", "ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
            file.truncate(max(0, file.tell() - leave))

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.path / "ballast").unlink()

    def read_only(self) -> None:
        self._remount("ro")

    def writable(self) -> None:
        self._remount("rw")

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True, capture_output=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.path], check=True, capture_output=True)
