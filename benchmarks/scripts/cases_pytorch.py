"""pytorch/examples and the reference scripts of pytorch/vision."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scripts import data
from benchmarks.scripts.case import Case, Work

EXAMPLES = "pytorch/examples"
LOSS = r"[Ll]oss: ([\d.]+)"
CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox")


def _digits(start: Path) -> None:
    data.mnist(start.parent / "data", training=1280, test=256)


def _few_digits(start: Path) -> None:
    data.mnist(start.parent / "data", training=160, test=64)


def _digits_inside(start: Path) -> None:
    data.mnist(start / "data", training=640, test=128)


def _text(start: Path) -> None:
    """Batches of 20 × 35 words: 30 for training; of 10 × 35 words: 6 for validation, 6 for the test."""
    for split, number in (("train", 20_000), ("valid", 2_000), ("test", 2_000)):
        data.words(start / "data" / "wikitext-2" / f"{split}.txt", number=number, vocabulary=500)


def _photographs(start: Path) -> None:
    for split, number in (("train", 16), ("test", 10)):
        data.images(start / "dataset/BSDS300/images", classes=[split], each=number, size=300)


def _image_folders(start: Path) -> None:
    for split, number in (("train", 4), ("val", 2)):
        data.images(start / "images" / split, classes=CLASSES, each=number, size=256)


def _sine_waves(start: Path) -> None:
    data.sine_waves(start / "traindata.pt", waves=40, points=50)


CASES = (
    Case(
        name="mnist",
        repository=EXAMPLES,
        folder="mnist",
        script="main.py",
        arguments="--epochs 2 --test-batch-size 64",
        data=_digits,
        work=Work(steps=40, epochs=2, validation=8),
        results=LOSS,
    ),
    Case(
        name="mnist_rnn",
        repository=EXAMPLES,
        folder="mnist_rnn",
        script="main.py",
        arguments="--epochs 5 --test-batch-size 64",
        data=_digits,
        work=Work(steps=100, epochs=5, validation=20),
        results=LOSS,
    ),
    Case(
        name="mnist_hogwild",
        repository=EXAMPLES,
        folder="mnist_hogwild",
        script="main.py",
        arguments="--epochs 2 --num-processes 2",
        data=_digits,
        work=Work(steps=80, epochs=2, validation=4, optimizers=2),
        results=LOSS,
        note="trains in two spawned processes that share the weights without locks",
    ),
    Case(
        name="forward_forward",
        repository=EXAMPLES,
        folder="mnist_forward_forward",
        script="main.py",
        arguments="--epochs 40 --train_size 640 --test_size 128",
        data=_digits_inside,
        work=Work(steps=80, validation=None),
        results=r"(?:Loss|error): +([\d.]+)",
        note="an optimizer for each layer; layers are called by `forward()`, not as modules",
    ),
    Case(
        name="vae",
        repository=EXAMPLES,
        folder="vae",
        script="main.py",
        arguments="--epochs 6",
        data=_digits,
        work=Work(steps=60, epochs=6, validation=18),
        results=r"[Ll]oss: ([\d.]+)",
        note="samples by `model.decode()` after each test: a step of its own",
    ),
    Case(
        name="siamese_network",
        repository=EXAMPLES,
        folder="siamese_network",
        script="main.py",
        arguments="--epochs 2 --batch-size 32 --test-batch-size 32",
        data=_few_digits,
        work=Work(steps=10, epochs=2, validation=4),
        results=LOSS,
        note="the same ResNet-18 twice in a forward pass",
    ),
    Case(
        name="dcgan",
        repository=EXAMPLES,
        folder="dcgan",
        script="main.py",
        arguments=(
            "--dataset fake --niter 1 --workers 1 --manualSeed 1 --ngf 16 --ndf 16 --imageSize 64 "
            "--batchSize 50"
        ),
        work=Work(steps=20, optimizers=2),
        results=r"(Loss_D: .*)",
        note="two networks, two optimizers, three backward passes in a step",
    ),
    Case(
        name="word_language_model",
        repository=EXAMPLES,
        folder="word_language_model",
        script="main.py",
        arguments="--epochs 2 --log-interval 10",
        data=_text,
        work=Work(steps=60, epochs=2, validation=18),
        results=r"loss +([\d.]+)",
        note="LSTM; no optimizer, no loader: it subtracts the gradient itself",
    ),
    Case(
        name="word_language_model-transformer",
        repository=EXAMPLES,
        folder="word_language_model",
        script="main.py",
        arguments="--epochs 2 --log-interval 10 --model Transformer --use-optimizer --lr 0.001",
        data=_text,
        work=Work(steps=60, epochs=2, validation=18),
        results=r"loss +([\d.]+)",
        note="no loader",
    ),
    Case(
        name="regression",
        repository=EXAMPLES,
        folder="regression",
        script="main.py",
        work=Work(steps=r"after (\d+) batches"),
        results=r"(Loss: .*)",
        note="no optimizer, no loader: it subtracts the gradient itself",
    ),
    Case(
        name="time_sequence_prediction",
        repository=EXAMPLES,
        folder="time_sequence_prediction",
        script="train.py",
        arguments="--steps 3",
        data=_sine_waves,
        work=Work(steps=3, validation=3),
        results=r"loss: (.*)",
        variables={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        note="L-BFGS: one update calls the network about twenty times, in a closure",
    ),
    Case(
        name="super_resolution",
        repository=EXAMPLES,
        folder="super_resolution",
        script="main.py",
        arguments="--upscale_factor 4 --batchSize 4 --threads 1 --nEpochs 2",
        data=_photographs,
        work=Work(steps=8, epochs=2, validation=2),
        results=r"(?:Loss|PSNR): ([\d.]+)",
        note="a loader worker; tests without `model.eval()`",
    ),
    Case(
        name="imagenet",
        repository=EXAMPLES,
        folder="imagenet",
        script="main.py",
        arguments="images -a resnet18 --epochs 2 -b 8 -j 1 -p 1 --seed 1",
        data=_image_folders,
        work=Work(steps=6, epochs=2, validation=4),
        results=r"Loss (\S+)",
        note="ResNet-18 at 224 × 224 from JPEG files",
    ),
    Case(
        name="vision-classification",
        repository="pytorch/vision",
        folder="references/classification",
        script="train.py",
        arguments=(
            "--data-path images --model mobilenet_v3_small --device cpu -b 8 -j 1 --epochs 2 "
            "--print-freq 1 --model-ema --output-dir ."
        ),
        data=_image_folders,
        work=Work(steps=6, epochs=2, validation=8),
        results=r"loss: ([\d.]+ \([\d.]+\))",
        note="an averaged copy of the network is evaluated as well",
    ),
)
