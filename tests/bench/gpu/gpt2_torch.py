#!/usr/bin/env python3
"""Trains GPT-2 with PyTorch as its users would: the peers with which tidepool is compared on a GPU.

usage: gpt2_torch.py --layers N --heads N --width N --batch N [--micro-batch N] [--vocabulary 50257]
                     [--seq-len 1024] [--steps 12] [--way resident|fsdp] [--recompute] [--device cuda|cpu] [--no-compile]

    resident   everything on the GPU: bf16 autocast over fp32 params, torch.compile,
               scaled_dot_product_attention (flash), fused AdamW; the figure to beat where a model fits
    fsdp       FSDP2 (fully_shard a block) with CPU offload of params, gradients and optimizer, mixed
               precision bf16, activation checkpoints, AdamW on the CPU (fused); one rank, for one GPU;
               the figure to beat where a model does not fit

Tokens are random, since speed does not depend on them. A step is the whole batch (micro-batches
accumulate), clipping to norm 1, and AdamW. Prints one JSON object: tokens a second of the median step
(steps from the fourth on), the peak of the GPU's memory, params.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

WARM_STEPS = 3


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """A GPT-2 with learned positions and the head tied to the embedding."""

    def __init__(self, options):
        super().__init__()
        # PyTorch's users pad the vocabulary to a multiple of 128 rows, which makes its matmuls faster.
        rows = (options.vocabulary + 127) // 128 * 128
        self.tokens, self.positions = nn.Embedding(rows, options.width), nn.Embedding(options.seq_len, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.heads) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.recompute = options.recompute

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def shard(model, options):
    """Applies FSDP2 with one unit for each block; everything trained stays on the host. The model has no
    memory before, so that none is spent twice. Values are drawn on the device, which is faster than the host.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
              "offload_policy": CPUOffloadPolicy(pin_memory=options.device == "cuda")}
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            values = torch.empty(p.shape, device=options.device)
            p.to_local().copy_(values.normal_(std=0.02) if p.dim() > 1 else values.fill_(0.5))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "heads", "width", "batch"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--way", choices=("resident", "fsdp"), default="resident")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    options.micro_batch = options.micro_batch or options.batch
    if options.batch % options.micro_batch or options.steps <= WARM_STEPS:
        parser.error(f"--batch must be a multiple of --micro-batch, --steps more than {WARM_STEPS}")
    return options


def build(options):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    if options.way == "fsdp":
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"})
        backend = "cuda:nccl,cpu:gloo" if options.device == "cuda" else "gloo"
        torch.distributed.init_process_group(backend)
        with torch.device("meta"):
            model = GPT2(options)
        shard(model, options)
    else:
        model = GPT2(options).to(options.device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    return model, optimizer


def step(run, model, optimizer, options, tokens, targets):
    pieces = options.batch // options.micro_batch
    for piece in range(pieces):
        rows = slice(piece * options.micro_batch, (piece + 1) * options.micro_batch)
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.way == "resident"):
            loss = run(tokens[rows], targets[rows]) / pieces
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main():
    options = parse()
    model, optimizer = build(options)
    params = sum(p.numel() for p in model.parameters())
    run = model if options.no_compile or options.way == "fsdp" else torch.compile(model)
    shape = (options.batch, options.seq_len)
    tokens, targets = (torch.randint(options.vocabulary, shape, device=options.device) for _ in range(2))
    finish = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    seconds = []
    for _ in range(options.steps):
        finish()
        begin = time.perf_counter()
        step(run, model, optimizer, options, tokens, targets)
        finish()
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[WARM_STEPS:])
    print(json.dumps({
        "peer": "pytorch " + torch.__version__, "way": options.way, "params": params, "step_seconds": median,
        "tokens_per_second": options.batch * options.seq_len / median,
        "gpu_peak_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else 0}))
    if options.way == "fsdp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
