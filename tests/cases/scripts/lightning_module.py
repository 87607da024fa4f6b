"""Lightning's Trainer with gradient accumulation and validation; its sanity check is validation too.

2 sanity steps, then 2 epochs of 16 training steps, an update at every second one, and 4 validation steps.
An argument names the directory where a callback records.
"""

import logging
import sys
import warnings

import lightning
import torch
import torch.nn.functional as F
from common import batches, digest, mlp

import laptime

warnings.simplefilter("ignore")  # advice on workers
logging.disable(logging.INFO)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def training_step(self, batch, _number):
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _number):
        inputs, labels = batch
        self.log("held_out", F.cross_entropy(self.net(inputs), labels))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


lightning.seed_everything(0, verbose=False)
callbacks = [laptime.LightningCallback(out=out, every_step=True) for out in sys.argv[1:]]
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=callbacks,
    accumulate_grad_batches=2,
)
network = Classifier()
trainer.fit(network, batches(128), batches(32, seed=1))
print(digest(network))
