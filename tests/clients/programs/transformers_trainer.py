"""The Trainer of transformers trains a small GPT-2, made from scratch, on made-up texts."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
first = torch.randint(32, (256, 1))
texts = (first + torch.arange(16)) % 32  # each counts up
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2))
trainer = Trainer(
    model,
    TrainingArguments(output_dir="out", use_cpu=True, num_train_epochs=3, learning_rate=1e-2, save_strategy="no"),
    train_dataset=[{"input_ids": text, "labels": text} for text in texts],
)
trained = trainer.train()

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks  # noqa: E402

assert trained.training_loss < 2, trained
same_on_all_ranks(model.parameters())
