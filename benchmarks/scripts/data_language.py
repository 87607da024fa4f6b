"""Made-up networks, tokenizers and texts in the layouts that the Hugging Face libraries read from disk."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from benchmarks.scripts.data import SEED

VOCABULARY = 500
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# A metric where the script expects one of the hub: a folder of this name beside it is found first.
METRIC = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        columns = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(columns)
        )

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        return {"accuracy": sum(a == b for a, b in pairs) / len(pairs)}
"""
# Which file is which split; without it a folder of files has only the configuration "default".
CARD = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: train.csv}
  - {split: validation, path: validation.csv}
---
"""


def tokenizer(folder: Path) -> None:
    """Words by number, split at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    known = [*SPECIAL, *(f"word{number}" for number in range(VOCABULARY))]
    splitter = Tokenizer(models.WordLevel({word: at for at, word in enumerate(known)}, unk_token="[UNK]"))
    splitter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    splitter.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, known.index(word)) for word in ("[CLS]", "[SEP]")],
    )
    special = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True)
    )
    PreTrainedTokenizerFast(tokenizer_object=splitter, model_max_length=128, **special).save_pretrained(
        folder
    )


def gpt2(folder: Path) -> None:
    """The configuration of a small GPT-2, and a tokenizer for it."""
    from transformers import GPT2Config

    size = len(SPECIAL) + VOCABULARY
    GPT2Config(vocab_size=size, n_embd=64, n_layer=2, n_head=2, n_positions=128).save_pretrained(folder)
    tokenizer(folder)


def bert(folder: Path) -> None:
    """A small BERT with weights of its own, and a tokenizer for it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(SEED)
    size = len(SPECIAL) + VOCABULARY
    config = BertConfig(
        vocab_size=size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=128,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer(folder)


def sentence_pairs(folder: Path, *, training: int, validation: int, card: bool = False) -> None:
    """Pairs of sentences in CSV files: the same words, or not."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    for split, number in (("train", training), ("validation", validation)):
        with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("sentence1", "sentence2", "label", "idx"))
            for at in range(number):
                first = random.integers(0, VOCABULARY, 20)
                second = first if at % 2 else random.integers(0, VOCABULARY, 20)
                sentences = (" ".join(f"word{word}" for word in sentence) for sentence in (first, second))
                table.writerow((*sentences, at % 2, at))
    if card:
        (folder / "README.md").write_text(CARD, encoding="utf-8")


def metric(folder: Path) -> None:
    """Accuracy, under the name of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{folder.name}.py").write_text(METRIC, encoding="utf-8")
