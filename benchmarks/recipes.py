"""The thesis' recipes on JPEGs made here: `python -m benchmarks.recipes [--device cuda] [--steps N]`.

First table: forward, backward and update of each layer, and which two lead by forward and backward, as the
thesis counted. Where a layer's forward takes longer than its backward, the reason is said: the first layer
has no gradient of its input to compute, and a layer of a few microseconds is the launch of its kernels.
Second table: ResNet-50 on JPEGs against made-up data of the same shape, and what the accounts say it waits
for.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from laptime.runs import Run
from laptime.training.config.reading import read_config
from laptime.training.data.generate import write_image_folder
from laptime.training.session import train
from laptime.views.run_document import content

RECIPES = ("alexnet-64", "alexnet-128", "vgg11-12")
LAUNCHES_S = 50e-6  # a layer that takes less is a handful of kernels of a few microseconds
FOLDER = Path(__file__).resolve().parents[1] / "recipes"
RESNET = """
[network]
name = "resnet50"
options.num_classes = 10
[data]
{data}
[train]
batch = {batch}
"""


def trained(config: Path, out: Path, settings: list[str]) -> dict[str, Any]:
    """What a run of a configuration shows."""
    run: Run = train(read_config(config, settings).config, out=out)
    return content(run)


def layer_rows(recipe: str, found: dict[str, Any]) -> list[str]:
    """A line per layer, and one on the whole."""
    stage = found["train"]
    layers = [layer for layer in stage["layers"] if layer["module"]]
    lead = sorted(layers, key=lambda layer: -(layer["forward"]["median"] + layer["backward"]["median"]))[:2]
    rows = []
    for place, layer in enumerate(layers):
        forward, backward = layer["forward"]["median"], layer["backward"]["median"]
        why = ""
        if forward >= backward:
            why = "UNEXPLAINED" if forward > LAUNCHES_S else "too small: the launch of its kernels"
            why = why if place else "no gradient of the input"
        update = layer["update"]["median"] if layer["update"] else 0.0
        cells = [recipe, layer["layer"], *(f"{one * 1e3:.2f}" for one in (forward, backward, update))]
        rows.append("| " + " | ".join([*cells, f"{layer['share'] * 100:.1f} %", why]) + " |")
    names = " and ".join(layer["layer"] for layer in lead)
    step = stage["wall_s"]["median"] * 1e3
    rows.append(f"| {recipe} | *{names} lead* | | | | {step:.1f} ms a step | |")
    return rows


def accounts(found: dict[str, Any]) -> str:
    """The largest accounts, in words."""
    shares = [
        (one["account"], one["share"] or 0.0) for one in found["train"]["accounts"] if not one["traced"]
    ]
    largest = sorted(shares, key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{name} {share * 100:.0f} %" for name, share in largest)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="of ResNet-50")
    options = parser.parse_args()
    shared = [f"device={options.device}", f"steps={options.steps}", "epochs=100", "checkpoint.every=0"]
    shared += ["validation.every=0"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_image_folder(root / "images", per_class=options.per_class)
        real = [f"data.path={root / 'images'}", f"workers={options.workers}"]
        print("| recipe | layer | forward ms | backward ms | update ms | of the compute | |")
        print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
        for recipe in RECIPES:
            found = trained(FOLDER / f"{recipe}.toml", root / recipe, [*shared, *real])
            print("\n".join(layer_rows(recipe, found)), flush=True)
        print("\n| ResNet-50 on | images/s | step ms | where a step goes |\n| --- | ---: | ---: | --- |")
        kinds = {
            "JPEGs": f'kind = "folder"\npath = "{root / "images"}"',
            "made-up data": f'kind = "synthetic"\nsamples = {options.batch * 4}\nclasses = 10',
        }
        for name, data in kinds.items():
            config = root / f"{name.split()[0]}.toml"
            config.write_text(RESNET.format(data=data, batch=options.batch))
            found = trained(config, root / config.stem, [*shared, f"workers={options.workers}"])
            stage = found["train"]
            step = stage["wall_s"]["median"] * 1e3
            print(f"| {name} | {stage['samples_per_s']:.0f} | {step:.1f} | {accounts(found)} |", flush=True)


if __name__ == "__main__":
    main()
