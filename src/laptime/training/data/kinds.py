"""The kinds of data: a section of the configuration for each. The file of its name here opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, PositiveInt

from laptime.training.config_section import ConfigSection, Count, Seed, Share


class DataSection(ConfigSection):
    """What the checks of a configuration need to know of a kind of data, besides its keys."""

    images: ClassVar[bool] = True  # samples can be images
    only_its_networks: ClassVar[bool] = False  # others cannot read it, and its own read nothing else
    class_count: ClassVar[int | None] = None  # where it does not depend on the keys


class ZenerData(DataSection):
    """Zener cards, drawn on demand: circle, cross, waves, square, star."""

    class_count = 5

    kind: Literal["zener"] = "zener"
    samples: PositiveInt = 1000
    """Cards to train on."""
    validation_samples: Count = 500
    """Cards that are never trained on."""
    size: Annotated[int, Field(ge=8, le=512)] = 32
    """Pixels along a side."""
    noise: Annotated[float, Field(ge=0.0, le=2.0)] = 0.1
    """Standard deviation of the noise on each pixel; ink is 1, paper 0."""
    seed: Seed = 1
    """Another seed deals other cards."""


class SyntheticData(DataSection):
    """Random numbers of any shape, made once, with random labels: for timing, not for learning."""

    kind: Literal["synthetic"] = "synthetic"
    samples: PositiveInt = 512
    """Samples to train on."""
    validation_samples: Count = 0
    """Samples to validate on."""
    shape: tuple[PositiveInt, ...] | None = None
    """One sample, such as [3, 224, 224]; by default what the network takes."""
    classes: PositiveInt | None = None
    """Labels are drawn below this; by default as many as the network tells apart."""
    ids: Count = 0
    """Samples are whole numbers below this; 0: real numbers."""
    seed: Seed = 1
    """Another seed gives other numbers."""


class FolderData(DataSection):
    """Images in folders, one folder per class, as in ImageNet: PATH/class/image.jpg or PATH/train/class/….

    Where PATH has `train` and `val` (or `validation`), these are used; else a share is held out.
    """

    kind: Literal["folder"] = "folder"
    path: Path
    """The folder of images."""
    remote: str | None = None
    """Where `laptime data sync` brings the classes from: a file, sftp, s3 or http address."""
    classes: tuple[str, ...] = ()
    """The class folders to use, by name; all of them if empty."""
    labels: Path | None = None
    """A dictionary from folder names to readable ones: TOML, JSON, or lines of `folder name`."""
    size: Annotated[int, Field(ge=8, le=2048)] = 224
    """Pixels along a side of what the network sees."""
    augment: Literal["none", "crop", "crop-flip"] = "crop-flip"
    """Training images: cut in the middle, a random crop, or a random crop mirrored half the time."""
    validation_share: Share = 0.2
    """Held out of each class, where there is no folder for it."""
    per_class: Count = 0
    """At most this many images of each class; 0: all."""
    on_corrupt: Literal["skip", "refuse"] = "skip"
    """An image that cannot be read: count it and go on with another, or stop."""


class DigitsData(DataSection):
    """Scikit-learn's 1797 handwritten digits of 8x8 pixels: real data without a download."""

    class_count = 10

    kind: Literal["digits"] = "digits"
    validation_share: Share = 0.2
    """Held out of each class."""
    flat: bool | None = None
    """Rows of 64 numbers instead of images; by default what the network takes."""


class TextData(DataSection):
    """Pieces of a text as character numbers, each with itself moved by one as its target."""

    images = False
    only_its_networks = True

    kind: Literal["text"] = "text"
    path: Path | None = None
    """A text file in UTF-8; by default the text of laptime's own licence."""
    length: Annotated[int, Field(ge=2, le=65536)] = 64
    """Characters in a sample."""
    validation_share: Share = 0.1
    """The end of the text, held out."""


class TreesData(DataSection):
    """Arithmetic on truth values, as trees: `and`, `or` and `not` over leaves; the target is the value."""

    images = False
    only_its_networks = True
    class_count = 2

    kind: Literal["trees"] = "trees"
    samples: PositiveInt = 2000
    """Trees to train on."""
    validation_samples: Count = 500
    """Trees that are never trained on."""
    depth: Annotated[int, Field(ge=1, le=12)] = 5
    """Depth of the deepest trees."""
    seed: Seed = 1
    """Another seed grows other trees."""


AnyData = ZenerData | SyntheticData | FolderData | DigitsData | TextData | TreesData
DataConfig = Annotated[AnyData, Field(discriminator="kind")]
KINDS: dict[str, type[DataSection]] = {
    section.model_fields["kind"].default: section for section in get_args(AnyData)
}
"""The register: a new kind is a section in `AnyData` and a file of its name with `open_data`."""
