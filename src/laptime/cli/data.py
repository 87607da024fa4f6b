"""`laptime data`: brings image folders from elsewhere, and writes one of Zener cards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from laptime.cli.options import wrong
from laptime.cli.outcome import Outcome, laptime_command, progress, say, verb, waiting
from laptime.errors import DataError
from laptime.files.text import one_line

if TYPE_CHECKING:
    from laptime.training.data.sync import Refused

data = typer.Typer(
    name="data",
    help="Bring image folders from elsewhere, or write one of Zener cards.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_SHOWN = 5  # reasons to refuse a name; --json has all the names
_MOST_BYTES = 4 << 30  # of cards drawn at once, as numbers


@data.command(short_help="bring chosen classes of a remote image folder")
@verb
def sync(
    remote: Annotated[
        str,
        Argument(
            metavar="REMOTE",
            help="The folder above the class folders: a path, sftp://user@host:port/path, s3://bucket/prefix"
            " or http(s)://host/path. Credentials come from ~/.ssh, AWS_… variables or .netrc.",
        ),
    ],
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Where they go; nothing else is written.")],
    classes: Annotated[str | None, Option(metavar="A,B", help="Class folders; by default all.")] = None,
    classes_file: Annotated[Path | None, Option(metavar="FILE", help="The same, one on each line.")] = None,
    jobs: Annotated[int, Option(min=1, max=64, help="Files brought side by side.")] = 8,
    max_files: Annotated[int, Option(min=1, help="Names in all listings.")] = 2_000_000,
    max_gb: Annotated[float, Option(min=0.0, help="What may be received.")] = 1000.0,
    max_hours: Annotated[float, Option(min=0.0, help="How long it may take.")] = 24.0,
) -> Outcome:
    """Bring class folders from a remote place. Run it again to go on, or to bring only what has changed."""
    if classes is not None and classes_file is not None:
        wrong("--classes / --classes-file", "give one of them")
    chosen = _chosen(classes, classes_file)
    from laptime.training.data.sync import SyncLimits
    from laptime.training.data.sync import sync as sync_here

    limits = SyncLimits(files=max_files, bytes=int(max_gb * 1e9), seconds=max_hours * 3600)
    done = sync_here(remote, folder, classes=chosen, jobs=jobs, limits=limits, bar=progress, waiting=waiting)
    _say_refused(done.refused)
    if done.empty:
        say(f"laptime: {len(done.empty)} classes hold no files there, such as {one_line(done.empty[0])}")
    told = (
        f"{len(done.classes)} classes in {done.folder}:"
        f" {done.files} files brought ({done.bytes / 1e6:.1f} MB),"
        f" {done.skipped} here already, {done.verified} verified by checksum, {len(done.refused)} refused,"
        f" in {done.seconds:.1f} s"
    )
    return Outcome(document=lambda: done, lines=lambda _: [told])


def _chosen(classes: str | None, classes_file: Path | None) -> list[str]:
    from laptime.files.read import read_text

    if classes_file is not None:
        try:
            lines = [line.strip() for line in read_text(classes_file).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = f"cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8 text'})"
            raise DataError(f"{classes_file} {reason}; give a file of class names") from error
        names = [line for line in lines if line and not line.startswith("#")]
        if not names:
            raise DataError(f"{classes_file} names no classes; write one on each line")
        return names
    names = [name.strip() for name in (classes or "").split(",") if name.strip()]
    if classes is not None and not names:
        wrong("--classes", "it names no classes; write a,b or leave it out to bring all of them")
    return names


def _say_refused(refused: Sequence[Refused]) -> None:
    """A line for each reason: a `.DS_Store` in every class is one of them."""
    reasons: dict[str, list[str]] = {}
    for refusal in refused:
        reasons.setdefault(refusal.reason, []).append(refusal.name)
    for reason, names in islice(reasons.items(), _SHOWN):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        say(f"laptime: refused {one_line(names[0])!r}{more}: {one_line(reason)}")
    if rest := sum(map(len, islice(reasons.values(), _SHOWN, None))):
        say(f"laptime: refused {rest} more for other reasons; --json lists them")


@data.command(short_help="write Zener cards as an image folder")
@verb
def zener(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Gets a folder for each of five symbols.")],
    count: Annotated[int, Option(min=5, help="Cards, a fifth of each symbol.")] = 1000,
    size: Annotated[int, Option(min=8, max=512, help="Pixels along a side.")] = 32,
    noise: Annotated[float, Option(min=0.0, max=2.0, help="Of each pixel; ink is 1.")] = 0.1,
    seed: Annotated[int, Option(min=0, help="Another one deals other cards.")] = 1,
    kind: Annotated[Literal["png", "jpeg"], Option("--format", help="Of the files.")] = "png",
) -> Outcome:
    """Write Zener cards as image files, one folder per symbol, ready to train on."""
    if 4 * count * size**2 > _MOST_BYTES:
        most = f"{_MOST_BYTES >> 30} GiB"
        wrong("--count / --size", f"so many cards need more than {most}; write fewer or smaller ones")
    from laptime.training.data.generate import write_zener_folder
    from laptime.training.data.zener import SYMBOLS

    full = [symbol for symbol in SYMBOLS if (folder / symbol).is_dir() and any((folder / symbol).iterdir())]
    if full:
        raise DataError(f"{folder / full[0]} holds files already; remove them or give another folder")
    with progress("writing", count) as tell:
        written = write_zener_folder(folder, count, size=size, noise=noise, seed=seed, kind=kind, tell=tell)
    told = [
        f"{sum(written.values())} cards of {size}x{size} pixels in {folder}:",
        ", ".join(f"{number} {symbol}" for symbol, number in written.items()),
        f"To train on them, put this into zener.toml and run `{laptime_command()} train zener.toml`:\n",
        _configuration(folder, size, _fitting_batch(written.values(), 32)),
    ]
    document = {"folder": folder, "cards": written, "size": size, "format": kind, "seed": seed}
    return Outcome(document=lambda: document, lines=lambda _: told)


@data.command(short_help="write made-up photographs as an image folder")
@verb
def images(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Gets a folder for each class.")],
    classes: Annotated[int, Option(min=2, max=1000, help="Textures to tell apart.")] = 10,
    per_class: Annotated[int, Option(min=1, help="Images of each class.")] = 100,
    seed: Annotated[int, Option(min=0, help="Another one makes other images.")] = 0,
) -> Outcome:
    """Write JPEGs as large as ImageNet's, for recipes and benchmarks that may not download anything."""
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} holds files already; give another folder")
    with waiting(f"making {classes * per_class} images"):
        from laptime.training.data.generate import write_image_folder

        written = write_image_folder(folder, classes=classes, per_class=per_class, seed=seed)
    batch = _fitting_batch([per_class] * classes, 64)
    options = f"data.path={shlex.quote(str(folder))}" + (f" --set train.batch={batch}" if batch else "")
    told = [
        f"{written} images of {classes} classes in {folder}",
        f"  {laptime_command()} train recipes/alexnet-64.toml --set {options}",
    ]
    document = {"folder": folder, "images": written, "classes": classes, "seed": seed}
    return Outcome(document=lambda: document, lines=lambda _: told)


def _configuration(folder: Path, size: int, batch: int | None) -> str:
    """A configuration that trains on the cards; `options.size` is set where the size is not the default."""
    options = "" if size == 32 else f"\noptions.size = {size}"
    smaller = f"\n\n[train]\nbatch = {batch}" if batch else ""
    return (
        f'[network]\nname = "zener7"{options}\n\n'
        f'[data]\nkind = "folder"\npath = {json.dumps(str(folder))}\nsize = {size}\naugment = "none"{smaller}'
    )


def _fitting_batch(counts: Iterable[int], usual: int) -> int | None:
    """The largest power of two within the training samples; None where they fill the usual batch."""
    from laptime.training.data.kinds import FolderData
    from laptime.training.data.layout import held_of

    share = FolderData.model_fields["validation_share"].default
    trained = sum(count - held_of(count, share) for count in counts)
    return None if trained >= usual else 1 << (trained.bit_length() - 1)
