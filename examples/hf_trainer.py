"""A classifier in the Trainer of Hugging Face's transformers:
python hf_trainer.py --output_dir out --max_steps 200"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import HfArgumentParser, Trainer, TrainingArguments

from orchestrator.programs.huggingface import ReportCallback

inputs = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
rows = [{"inputs": x, "labels": (x.sum() > 0).long()} for x in inputs]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
args.eval_strategy, args.eval_steps, args.save_strategy, args.report_to = "steps", 5, "no", []
args.lr_scheduler_type = "constant"
trainer = Trainer(
    args=args,
    model_init=Classifier,
    train_dataset=rows[:1500],
    eval_dataset=rows[1500:],
    callbacks=[ReportCallback()],
)
trainer.train()
trainer.evaluate()
