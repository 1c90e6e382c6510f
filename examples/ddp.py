"""A classifier on several processes: torchrun --nproc-per-node 2 ddp.py --lr 0.5"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from orchestrator import report

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--batch-size", type=int, default=32, help="of a step, on all processes")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--max-steps", type=int, default=300)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
inputs = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
labels = (inputs.sum(dim=1) > 0).long()

torch.manual_seed(args.seed)  # all processes draw the same batches
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(1, args.max_steps + 1):
    batch = torch.randint(1500, (args.batch_size,))[rank::ranks]
    optimizer.zero_grad()
    cross_entropy(model(inputs[batch]), labels[batch]).backward()
    optimizer.step()
    if step % 5 == 0:
        with torch.no_grad():
            wrong = model(inputs[1500:]).argmax(dim=1) != labels[1500:]
        if rank == 0:
            print(f"step {step}: error {wrong.float().mean():.3f}")
        if not report(step, {"val/error": wrong.float().mean()}):
            break
dist.destroy_process_group()
