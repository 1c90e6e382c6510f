"""A classifier in Lightning's Trainer: python lit_trainer.py --lr 0.02"""

import argparse

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.programs.lightning import ReportCallback

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--max-steps", type=int, default=200)
args = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, _):
        return cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val/loss", cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=args.lr)


lightning.seed_everything(args.seed)
inputs = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
train, val = (torch.utils.data.Subset(data, part) for part in (range(1500), range(1500, 2000)))
trainer = lightning.Trainer(
    max_steps=args.max_steps, check_val_every_n_epoch=None, val_check_interval=5,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
    callbacks=[ReportCallback()],
)  # fmt: skip
trainer.fit(
    Classifier(),
    DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True),
    DataLoader(val, batch_size=500),
)
