"""Scripts of the same repositories that cannot be run here, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A script, or a folder of them, and the reason in a few words."""

    script: str
    reason: str


LEFT_OUT = (
    LeftOut("pytorch/examples gat, gcn", "download their graph at every start"),
    LeftOut("pytorch/examples fast_neural_style", "downloads VGG-16's weights"),
    LeftOut("pytorch/examples language_translation, legacy/snli", "need torchtext, which has ended"),
    LeftOut("pytorch/examples reinforcement_learning", "run until solved: minutes, and as many as it takes"),
    LeftOut("pytorch/examples distributed", "two accelerators or more"),
    LeftOut("pytorch/examples imagenet --dummy", "1.3 million made-up images an epoch; JPEG files instead"),
    LeftOut("pytorch/vision detection, segmentation", "pycocotools, and operators without a CPU build"),
    LeftOut("pytorch-lightning transformer, language_model", "20 epochs of WikiText-2, no arguments"),
    LeftOut("pytorch-lightning generative_adversarial_net, imagenet", "ask for a GPU"),
    LeftOut("transformers run_clm_no_trainer", "names a constant that accelerate 1.15 no longer has"),
    LeftOut("accelerate cv_example", "needs timm"),
)
