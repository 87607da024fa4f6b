"""transformers' Trainer with gradient accumulation, evaluation and checkpoints, on a tiny GPT-2.

20 training steps an epoch with an update every second one, then 10 validation steps; 2 epochs. Arguments:
`callback DIRECTORY` records itself there; `checkpointing` runs each block again in backward.
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import laptime


class Tokens(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 100, (16,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


set_seed(0)
network = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=32))
settings = TrainingArguments(
    "checkpoints",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    report_to="none",
    logging_steps=5,
    eval_strategy="epoch",
    save_strategy="epoch",
    use_cpu=True,
    disable_tqdm=True,
    gradient_checkpointing="checkpointing" in sys.argv,
)
callbacks = []
if "callback" in sys.argv:
    callbacks.append(laptime.TrainerCallback(out=sys.argv[-1], every_step=True))
trainer = Trainer(
    model=network, args=settings, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=callbacks
)
print(round(trainer.train().training_loss, 6))
