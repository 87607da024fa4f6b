"""A LightningModule whose training_step calls two parts of it; the root directory is the argument."""

import sys

import torch
import torch.nn.functional as F
from common import data
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Lit(LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.head(self.body(x)), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("loss", F.cross_entropy(self.head(self.body(x)), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
trainer = Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    num_sanity_val_steps=0,
    default_root_dir=sys.argv[1],
    **quiet,
)
trainer.fit(Lit(), DataLoader(data(16), batch_size=6), DataLoader(data(8), batch_size=4))
