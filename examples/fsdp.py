"""A stack of layers whose weights lie in parts on several processes (FSDP2):
torchrun --nproc-per-node 2 fsdp.py --lr 0.01"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from orchestrator import report

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--local-batch-size", type=int, default=16, help="of one process")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(args.seed)
layers = [nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)]
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
for layer in layers[::2]:
    fully_shard(layer, mesh=mesh)
model = fully_shard(nn.Sequential(*layers), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

draw = torch.Generator().manual_seed(args.seed * 1000 + dist.get_rank())
val = torch.randn(500, 8, generator=torch.Generator().manual_seed(1))
for step in range(1, args.steps + 1):
    inputs = torch.randn(args.local_batch_size, 8, generator=draw)
    optimizer.zero_grad()
    mse_loss(model(inputs).squeeze(1), inputs[:, 0].sin()).backward()
    optimizer.step()
    if step % 2 == 0:
        with torch.no_grad():
            loss = mse_loss(model(val).squeeze(1), val[:, 0].sin())
        if not report(step, {"val/loss": loss}):
            break
dist.destroy_process_group()
