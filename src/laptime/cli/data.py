"""`laptime data`: brings image folders from elsewhere, and writes one of Zener cards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from laptime.cli.options import Json, wrong
from laptime.cli.outcome import answer, say
from laptime.cli.progress import progress, waiting
from laptime.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from laptime.train.data.sync import Refused, Synced

data = typer.Typer(
    name="data",
    help="Bring image folders from elsewhere, or write one of Zener cards.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_SHOWN = 5  # refused names; --json has them all
_MOST_BYTES = 4 << 30  # of cards drawn at once, as numbers


@data.command(short_help="bring chosen classes of a remote image folder")
def sync(
    remote: Annotated[
        str,
        typer.Argument(
            metavar="REMOTE",
            help="The folder above the class folders: a path, sftp://user@host:port/path, s3://bucket/prefix"
            " or http(s)://host/path. Credentials come from ~/.ssh, AWS_… variables or .netrc.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where they go; nothing else is written.")],
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="A,B", help="Class folders; by default all.")
    ] = None,
    classes_file: Annotated[
        Path | None, typer.Option("--classes-file", metavar="FILE", help="The same, one on each line.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Files brought side by side.")] = 8,
    as_json: Json = False,
) -> None:
    """Bring class folders from a remote place. Run it again to go on, or to bring only what has changed."""
    if classes is not None and classes_file is not None:
        wrong("--classes / --classes-file", "give one of them")
    chosen = _chosen(classes, classes_file)
    from laptime.train.data.sync import sync as sync_here

    done = sync_here(remote, folder, classes=chosen, jobs=jobs, bar=progress, waiting=waiting)
    _say_refused(done.refused)
    if done.empty:
        say(f"laptime: {len(done.empty)} classes hold no files there, such as {done.empty[0]}")
    if as_json:
        answer(done)
    else:
        _show(done)


def _chosen(classes: str | None, classes_file: Path | None) -> list[str]:
    if classes_file is not None:
        try:
            lines = [line.strip() for line in classes_file.read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise DataError(
                f"{classes_file} cannot be read ({reason}); give a file of class names"
            ) from error
        names = [line for line in lines if line and not line.startswith("#")]
        if not names:
            raise DataError(f"{classes_file} names no classes; write one on each line")
        return names
    if classes is None:
        return []
    names = [name.strip() for name in classes.split(",") if name.strip()]
    if not names:
        wrong("--classes", "it names no classes; write a,b or leave it out to bring all of them")
    return names


def _say_refused(refused: Sequence[Refused]) -> None:
    from laptime.store.files import one_line

    for one in refused[:_SHOWN]:
        say(f"laptime: refused {one_line(one.name)!r}: {one_line(one.reason)}")
    if len(refused) > _SHOWN:
        say(f"laptime: refused {len(refused) - _SHOWN} more; --json lists them")


def _show(done: Synced) -> None:
    print(
        f"{len(done.classes)} classes in {done.folder}:"
        f" {done.files} files brought ({done.bytes / 1e6:.1f} MB),"
        f" {done.skipped} here already, {done.verified} verified by checksum, {len(done.refused)} refused,"
        f" in {done.seconds:.1f} s"
    )


@data.command(short_help="write Zener cards as an image folder")
def zener(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Gets a folder for each of five symbols.")],
    count: Annotated[int, typer.Option("--count", min=5, help="Cards, a fifth of each symbol.")] = 1000,
    size: Annotated[int, typer.Option("--size", min=8, max=512, help="Pixels along a side.")] = 32,
    noise: Annotated[float, typer.Option("--noise", min=0.0, max=2.0, help="Of each pixel; ink is 1.")] = 0.1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another one deals other cards.")] = 1,
    kind: Annotated[Literal["png", "jpeg"], typer.Option("--format", help="Of the files.")] = "png",
    as_json: Json = False,
) -> None:
    """Write Zener cards as image files, one folder per symbol, ready to train on."""
    if 4 * count * size**2 > _MOST_BYTES:
        wrong(
            "--count / --size",
            f"so many cards need more than {_MOST_BYTES >> 30} GiB; write fewer or smaller ones",
        )
    written = _write_cards(folder, count, size, noise, seed, kind)
    if as_json:
        answer({"folder": folder, "cards": written, "size": size, "format": kind, "seed": seed})
        return
    print(f"{sum(written.values())} cards of {size}x{size} pixels in {folder}:")
    print(", ".join(f"{number} {symbol}" for symbol, number in written.items()))
    print("To train on them, put this into zener.toml and run `laptime train zener.toml`:\n")
    print(_configuration(folder, size))


@data.command(short_help="write made-up photographs as an image folder")
def images(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Gets a folder for each class.")],
    classes: Annotated[int, typer.Option("--classes", min=2, max=1000, help="Textures to tell apart.")] = 10,
    per_class: Annotated[int, typer.Option("--per-class", min=1, help="Images of each class.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another one makes other images.")] = 0,
    as_json: Json = False,
) -> None:
    """Write JPEGs as large as ImageNet's, for recipes and benchmarks that may not download anything."""
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} holds files already; give another folder")
    with waiting(f"making {classes * per_class} images"):
        from laptime.train.data.generate import write_image_folder

        written = write_image_folder(folder, classes=classes, per_class=per_class, seed=seed)
    if as_json:
        answer({"folder": folder, "images": written, "classes": classes, "seed": seed})
        return
    print(f"{written} images of {classes} classes in {folder}")
    print(f"  laptime train recipes/alexnet-64.toml --set data.path={folder}")


def _configuration(folder: Path, size: int) -> str:
    """A training on the cards; the network is told of another size than its own."""
    options = "" if size == 32 else f"\noptions.size = {size}"
    return (
        f'[network]\nname = "zener7"{options}\n\n'
        f'[data]\nkind = "folder"\npath = {json.dumps(str(folder))}\nsize = {size}\naugment = "none"'
    )


def _write_cards(
    folder: Path, count: int, size: int, noise: float, seed: int, kind: Literal["png", "jpeg"]
) -> dict[str, int]:
    """How many cards of each symbol were written."""
    from laptime.train.data.zener import SYMBOLS, cards

    try:
        import cv2
    except ModuleNotFoundError as error:
        raise MissingExtra("opencv-python-headless", "images") from error
    full = [symbol for symbol in SYMBOLS if (folder / symbol).is_dir() and any((folder / symbol).iterdir())]
    if full:
        raise DataError(f"{folder / full[0]} holds files already; remove them or give another folder")
    images, labels = cards(count, size=size, noise=noise, seed=seed)
    pixels = (images[:, 0] * 255 + 0.5).astype("uint8")
    written = dict.fromkeys(SYMBOLS, 0)
    digits = max(4, len(str(count)))
    ending = {"png": ".png", "jpeg": ".jpg"}[kind]
    try:
        for symbol in SYMBOLS:
            (folder / symbol).mkdir(parents=True, exist_ok=True)
        with progress("writing", count) as tell:
            for image, label in zip(pixels, labels, strict=True):
                symbol = SYMBOLS[label]
                written[symbol] += 1
                file = folder / symbol / f"{written[symbol]:0{digits}}{ending}"
                file.write_bytes(cv2.imencode(ending, image)[1].tobytes())
                tell(symbol)
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}); give another folder") from error
    return written
