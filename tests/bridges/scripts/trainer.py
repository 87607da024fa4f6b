"""A Hugging Face Trainer that accumulates gradients and evaluates; the output directory is the argument."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.arange(9) % 7 + index % 7
        return {"input_ids": tokens, "labels": tokens}


config = GPT2Config(
    n_layer=1, n_head=2, n_embd=16, vocab_size=20, n_positions=16, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    num_train_epochs=2,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(14), eval_dataset=Tokens(7)).train()
