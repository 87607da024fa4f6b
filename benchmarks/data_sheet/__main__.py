"""Devices known by their data sheet only: `python -m benchmarks.data_sheet REFERENCE`.

So far the transformers of `neusight_measured_labels.csv` on one GPU (fp32, eager attention): inference, and
training without the update. Nothing is fitted to these rows: every operation is taken to reach the share of
its roofline that it reaches on an H200. Averaged per device and then over devices.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from laptime import hardware
from laptime.predict.predicting import predict
from laptime.workload import Phase, Workload

METRICS = {"inference_latency": "inference", "step_time": "training"}
# Sizes: the papers' tables of BERT, GPT-2, GPT-3 and OPT. GPT-3's XL has 24 heads of 128 in a width of 2048,
# which GPT-2's code cannot have; 24 x 128 = 3072 is the width that it can, and that the times speak for.
GPT: dict[str, dict[str, int]] = {
    "gpt2_large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt3_xl": {"n_embd": 3072, "n_layer": 24, "n_head": 24, "n_positions": 2048},
    "gpt3_27": {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048},
}


@cache
def network(name: str) -> Any:
    """A network without memory."""
    import torch

    transformers: Any = import_module("transformers")  # whose configurations' types refuse a dictionary
    eager: dict[str, Any] = {"attn_implementation": "eager"}
    with torch.device("meta"):
        if name in GPT:
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT[name], **eager))
        if name == "bert_large":
            sizes: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
            config = transformers.BertConfig(**sizes, intermediate_size=4096, **eager)
            return transformers.BertForMaskedLM(config)
        sizes = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32}
        config = transformers.OPTConfig(**sizes, ffn_dim=8192, word_embed_proj_dim=2048, **eager)
        return transformers.OPTForCausalLM(config)


@cache
def workload(name: str, batch: int, length: int, mode: str) -> Workload:
    """A step on token ids, with a loss if it trains."""
    import torch

    from laptime.api import workload as read

    ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
    example = {"input_ids": ids} if mode == "inference" else {"input_ids": ids, "labels": ids}
    return read(network(name), example=example, mode=mode, name=name)


def errors(folder: Path) -> dict[str, list[tuple[str, float]]]:
    """(what, error) of each row, by device."""
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    with open(folder / "neusight_measured_labels.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["n_devices"] == "1" and row["metric"] in METRICS]
    for row in rows:
        if row["model"] == "switchxl4":  # a mixture of experts that transformers has in another form
            continue
        mode, length = METRICS[row["metric"]], re.search(r"seq_len (\d+)", row["note"])
        assert length is not None
        asked = workload(row["model"], int(row["batch_per_device"]), int(length[1]), mode)
        made = predict(asked, hardware.gpu_in(row["device"]))
        seconds = sum(value for phase, value in made.phases.items() if phase is not Phase.UPDATE)
        what = f"{row['model']} b{row['batch_per_device']} {mode}"
        found[row["device"]].append((what, seconds * 1e3 / float(row["value"]) - 1))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    found = errors(parser.parse_args().reference)
    print("| device | rows | mean % | bias % | p90 |\n| --- | ---: | ---: | ---: | ---: |")
    for device, rows in found.items():
        here = np.array([error for _, error in rows]) * 100
        figures = np.abs(here).mean(), here.mean(), np.quantile(np.abs(here), 0.9)
        print(f"| {device} | {len(rows)} | {figures[0]:.1f} | {figures[1]:+.1f} | {figures[2]:.1f} |")
    each = [np.mean([abs(error) for _, error in rows]) for rows in found.values()]
    every = [
        (abs(error), f"{device}: {what} {error * 100:+.0f} %")
        for device, rows in found.items()
        for what, error in rows
    ]
    p90 = np.quantile([size for size, _ in every], 0.9)
    print(f"\nOver devices: mean {np.mean(each) * 100:.1f} %; p90 of all rows {p90 * 100:.1f} %.")
    print("Worst ten: " + ", ".join(words for _, words in sorted(every, reverse=True)[:10]) + ".")


if __name__ == "__main__":
    main()
