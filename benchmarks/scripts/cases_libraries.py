"""Scripts that train through a library: Lightning and its Fabric, transformers, accelerate."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scripts import data, data_language
from benchmarks.scripts.case import Case, Work

LIGHTNING = "Lightning-AI/pytorch-lightning"
TRANSFORMERS = "huggingface/transformers"
ACCELERATE = "huggingface/accelerate"
LOSS = r"[Ll]oss: ([\d.]+)"


def _digits(start: Path) -> None:
    data.mnist(start.parent / "Datasets", training=1280, test=256)


def _all_digits(start: Path) -> None:
    """As many as MNIST has: the script splits them 55,000 to 5,000. Lightning itself looks into `data`."""
    data.mnist(start.parent / "Datasets", training=60_000, test=640)
    data.mnist(start / "data", training=10, test=10)


def _language_model(start: Path) -> None:
    """1,000 lines of 20 words and two marks; 950 of them for training, in 326 blocks of 64."""
    data_language.gpt2(start / "tiny")
    data.words(start / "train.txt", number=20_000, vocabulary=data_language.VOCABULARY)


def _pairs(start: Path) -> None:
    data_language.bert(start / "tiny")
    data_language.sentence_pairs(start / "pairs", training=320, validation=64)
    data_language.metric(start / "accuracy")


def _mrpc(start: Path) -> None:
    """Under the names that the script would find on the hub."""
    data_language.bert(start / "bert-base-cased")
    data_language.sentence_pairs(start / "nyu-mll/glue", training=320, validation=64, card=True)
    data_language.metric(start / "glue")


CASES = (
    Case(
        name="fabric-kfold_cv",
        repository=LIGHTNING,
        folder="examples",
        script="fabric/kfold_cv/train_fabric.py",
        arguments="--epochs 2 --folds 2",
        data=_digits,
        work=Work(steps=40, epochs=4, validation=40),
        results=LOSS,
        note="two networks in turn, each with a loader of its own: four passes in two epochs",
    ),
    Case(
        name="lightning-autoencoder",
        repository=LIGHTNING,
        folder="examples/pytorch",
        script="basics/autoencoder.py",
        arguments=(
            "--trainer.max_epochs=2 --trainer.limit_train_batches=100 --trainer.limit_val_batches=10 "
            "--trainer.limit_test_batches=10 --trainer.limit_predict_batches=5 "
            "--trainer.accelerator=cpu --trainer.enable_progress_bar=false"
        ),
        data=_all_digits,
        work=Work(steps=200, epochs=2, validation=39),
        results=r"test_loss\S* +│? *([\d.]+)|^(tensor.*|\s+\[.*)",
        note=(
            "LightningCLI; 2 batches of sanity check, 20 of validation, 10 of test, 5 of prediction, "
            "and one drawn by a callback after each epoch"
        ),
    ),
    Case(
        name="transformers-run_clm",
        repository=TRANSFORMERS,
        folder="examples/pytorch/language-modeling",
        script="run_clm.py",
        arguments=(
            "--config_name tiny --tokenizer_name tiny --train_file train.txt --do_train --block_size "
            "64 --per_device_train_batch_size 8 --use_cpu --num_train_epochs 2 --logging_steps 5 "
            "--output_dir out --report_to none"
        ),
        data=_language_model,
        work=Work(steps=82, epochs=2),
        results=r"'loss': '?([\d.]+)|train_loss'?: '?([\d.]+)",
        note="transformers.Trainer; a twentieth of the text is kept for validation",
    ),
    Case(
        name="transformers-run_glue",
        repository=TRANSFORMERS,
        folder="examples/pytorch/text-classification",
        script="run_glue.py",
        arguments=(
            "--model_name_or_path tiny --train_file pairs/train.csv --validation_file "
            "pairs/validation.csv --do_train --do_eval --max_seq_length 64 "
            "--per_device_train_batch_size 8 --per_device_eval_batch_size 8 --use_cpu "
            "--num_train_epochs 2 --logging_steps 5 --output_dir out --report_to none"
        ),
        data=_pairs,
        work=Work(steps=80, epochs=2, validation=8),
        results=r"'(?:eval_)?loss': '?([\d.]+)|(?:train|eval)_loss +=? +([\d.]+)",
        note="transformers.Trainer",
    ),
    Case(
        name="accelerate-nlp_example",
        repository=ACCELERATE,
        folder="examples",
        script="nlp_example.py",
        arguments="--cpu",
        data=_mrpc,
        work=Work(steps=60, epochs=3, validation=6),
        results=r"(=====.*|epoch \d+:.*)",
    ),
    Case(
        name="accelerate-gradient_accumulation",
        repository=ACCELERATE,
        folder="examples",
        script="by_feature/gradient_accumulation.py",
        arguments="--cpu --gradient_accumulation_steps 4",
        data=_mrpc,
        work=Work(steps=60, epochs=3, validation=6),
        results=r"(epoch \d+:.*)",
        note="four batches to an update",
    ),
)
