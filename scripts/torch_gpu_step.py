"""Whole training steps in PyTorch on a GPU, of the models that gpu-check times: the peer of its part "models".

    python torch_gpu_step.py --json torch.json [--like check.json] [--compile off] [--only "GPT-2 124M"]
    python torch_gpu_step.py --device cpu --size tiny --json torch.json    # tries the program; no figure of it counts

`gpu-check --compare torch.json --json check.json` prints both side by side. Needs PyTorch 2.5 or later and nothing else
of Python. Models are plain modules with random weights:

* Parameters and hidden states are bf16, all of them, without autocast. The optimizer has f32 masters and moments and
  writes the masters back to bf16, as gpu-check's Adam does. Gradients are bf16 until the optimizer casts them to f32;
  gpu-check accumulates them in f32 from the start. Losses are computed from logits widened to f32; gpu-check's head
  computes logits and their loss in chunks of rows.
* AdamW is fused, with weight decay 0.01 on matrices; gradients are clipped at norm 1.0; attention is
  scaled_dot_product_attention, causal or without a mask; nothing is recomputed; torch.compile without dynamic shapes.
* A step is timed as gpu-check does it: from the batch in host memory to the loss in host memory, which is read after
  the optimizer. Three steps for warm-up, then the median.
* Operations of a step: six for each weight of a matrix product and token, and 12 for each layer, pair of tokens and
  column of the width for attention, half of that where it is causal. Embeddings, norms and the optimizer count nothing.
  The share is relative to a bf16 product of 8192^3, measured first.

Rows are the most of 64, 48, 32, ... that fit; --like begins with the rows of a report of gpu-check.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "auto": [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
}
WARMUP, ROWS = 3, (64, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1)


@dataclass(frozen=True)
class Timed:
    """A model by gpu-check's name for it, and the tokens of a row; `rows` where their number is fixed."""

    name: str
    family: str  # gpt2, llama or bert
    layers: int
    width: int
    heads: int
    ff: int
    vocabulary: int
    length: int
    dropout: float = 0.0
    rows: int = 0

    @property
    def kv_heads(self):
        """Heads of keys and values."""
        return self.heads // 4 if self.family == "llama" else self.heads

    def flops_per_token(self):
        """Operations of a step for each token, as crates/bmtrain-bench/src/step/size.rs counts them."""
        d, llama = self.width, self.family == "llama"
        qkv = d + 2 * d // self.heads * self.kv_heads
        weights = self.layers * d * (qkv + d + (3 if llama else 2) * self.ff)
        weights += 0 if self.family == "bert" else self.vocabulary * d
        attention = 12 * self.layers * d * self.length
        return 6 * weights + (attention if self.family == "bert" else attention / 2)


GPT2 = ("gpt2", 12, 768, 12, 3072, 50257, 1024)
BERT_BASE = ("bert", 12, 768, 12, 3072, 30522, 128, 0.1)
SIZES = {
    "real": (
        Timed("GPT-2 124M without dropout", *GPT2),
        Timed("GPT-2 124M", *GPT2, 0.1),
        Timed("GPT-2 1.5B", "gpt2", 48, 1600, 25, 6400, 50257, 1024, 0.1),
        Timed("BERT-large", "bert", 24, 1024, 16, 4096, 30522, 512, 0.1),
        Timed("BERT-base fine-tuning", *BERT_BASE, 32),
        Timed("BERT-base fine-tuning, few rows", *BERT_BASE, 8),
        Timed("Llama 1B", "llama", 16, 2048, 32, 8192, 128256, 2048),
    ),
    "tiny": (
        Timed("tiny GPT-2", "gpt2", 2, 64, 2, 96, 50, 8, 0.1),
        Timed("tiny BERT", "bert", 2, 64, 2, 96, 50, 8, 0.1),
        Timed("tiny Llama", "llama", 2, 64, 4, 96, 50, 8),
    ),
}


class Attention(nn.Module):
    """Self-attention with one product for queries, keys and values."""

    def __init__(self, t):
        super().__init__()
        self.heads, self.kv, self.causal, self.p = t.heads, t.kv_heads, t.family != "bert", t.dropout
        self.head = t.width // t.heads
        self.qkv = nn.Linear(t.width, (t.heads + 2 * t.kv_heads) * self.head, bias=t.family != "llama")
        self.out = nn.Linear(t.width, t.width, bias=t.family != "llama")

    def forward(self, x, rotary):
        """[B, L, D] to [B, L, D]."""
        b, length, d = x.shape
        parts = self.qkv(x).view(b, length, -1, self.head).transpose(1, 2)  # [B, N + 2 K, L, H]
        q, k, v = parts.split((self.heads, self.kv, self.kv), dim=1)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=self.causal,
                                           enable_gqa=self.kv != self.heads)
        return self.out(y.transpose(1, 2).reshape(b, length, d))


def rotate(x, rotary):
    """[B, N, L, H] rotated by the angles' cosines and sines, [L, H]."""
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class FeedForward(nn.Module):
    """Two layers with GELU, or a gated one."""

    def __init__(self, t):
        super().__init__()
        self.gated, self.tanh = t.family == "llama", "tanh" if t.family == "gpt2" else "none"
        self.up = nn.Linear(t.width, (2 if self.gated else 1) * t.ff, bias=not self.gated)
        self.down = nn.Linear(t.ff, t.width, bias=not self.gated)

    def forward(self, x):
        if not self.gated:
            return self.down(F.gelu(self.up(x), approximate=self.tanh))
        gate, values = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * values)


class Block(nn.Module):
    """A transformer block: norms before its layers, in BERT after them."""

    def __init__(self, t):
        super().__init__()
        norm = nn.RMSNorm if t.family == "llama" else nn.LayerNorm
        self.after, self.attention, self.ffn = t.family == "bert", Attention(t), FeedForward(t)
        self.norms, self.dropout = nn.ModuleList(norm(t.width, eps=1e-5) for _ in range(2)), nn.Dropout(t.dropout)

    def forward(self, x, rotary):
        if self.after:
            x = self.norms[0](x + self.dropout(self.attention(x, rotary)))
            return self.norms[1](x + self.dropout(self.ffn(x)))
        x = x + self.dropout(self.attention(self.norms[0](x), rotary))
        return x + self.dropout(self.ffn(self.norms[1](x)))


class Model(nn.Module):
    """Embeddings, blocks and a head, up to the loss."""

    def __init__(self, t):
        super().__init__()
        self.family = t.family
        self.tokens = nn.Embedding(t.vocabulary, t.width)
        self.positions = None if t.family == "llama" else nn.Embedding(max(t.length, 512), t.width)
        self.types = nn.Embedding(2, t.width) if t.family == "bert" else None
        self.norm = nn.RMSNorm(t.width, eps=1e-5) if t.family == "llama" else nn.LayerNorm(t.width, eps=1e-5)
        self.dropout, self.blocks = nn.Dropout(t.dropout), nn.ModuleList(Block(t) for _ in range(t.layers))
        if t.family == "bert":
            self.pooler, self.head = nn.Linear(t.width, t.width), nn.Linear(t.width, 2)
        elif t.family == "llama":
            self.head = nn.Linear(t.width, t.vocabulary, bias=False)
            size = t.width // t.heads
            angles = torch.outer(torch.arange(t.length), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        """The mean loss; ids [B, L], labels [B, L] of tokens or [B] of classes."""
        x = self.tokens(ids)  # [B, L, D]
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        if self.types is not None:
            x = self.norm(x + self.types.weight[0])
        x, rotary = self.dropout(x), (self.cos, self.sin) if self.family == "llama" else None
        for block in self.blocks:
            x = block(x, rotary)
        if self.family == "bert":
            logits = self.head(self.dropout(torch.tanh(self.pooler(x[:, 0]))))  # [B, 2]
            return F.cross_entropy(logits.float(), labels)
        x = self.norm(x)
        logits = self.head(x) if self.family == "llama" else F.linear(x, self.tokens.weight)  # [B, L, V]
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


class Adam:
    """Fused AdamW on f32 masters of bf16 parameters."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.masters = [p.detach().float() for p in self.parameters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        groups = [{"params": [m for m in self.masters if (m.dim() > 1) == matrices],
                   "weight_decay": 0.01 if matrices else 0.0} for matrices in (True, False)]
        self.inner = torch.optim.AdamW(groups, lr=1e-5, fused=True)

    def step(self):
        """Cast the gradients, clip them, update the masters, and write these back."""
        torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.inner.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
        for p in self.parameters:
            p.grad = None


def batch_of(t, rows):
    """Random ids and labels in host memory."""
    ids = torch.randint(0, t.vocabulary, (rows, t.length))
    next_tokens = torch.cat((ids[:, 1:], torch.full((rows, 1), -100)), dim=1)  # a row's last token has no next one
    return ids, torch.randint(0, 2, (rows,)) if t.family == "bert" else next_tokens


def measure(t, rows, arguments):
    """Steps of a model with this number of rows, as gpu-check's JSON has them."""
    device = arguments.device
    torch.manual_seed(0)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with torch.device(device):
        model = Model(t).to(torch.bfloat16).train()
    optimizer = Adam(model.parameters())
    run = model if arguments.compile == "off" else torch.compile(model, mode=arguments.compile, dynamic=False)
    seconds, loss = [], 0.0
    for ids, labels in (batch_of(t, rows) for _ in range(WARMUP + arguments.steps)):
        start = time.perf_counter()
        value = run(ids.to(device), labels.to(device))
        value.backward()
        optimizer.step()
        loss = value.item()
        seconds.append(time.perf_counter() - start)
    step = statistics.median(seconds[WARMUP:])
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else None
    return {
        "model": t.name, "dtype": "bf16", "dropout": t.dropout, "length": t.length, "rows": rows, "recompute": False,
        "step_s": step, "steps_s": seconds[WARMUP:], "tokens_per_s": rows * t.length / step,
        "flops_per_token": t.flops_per_token(), "peak_bytes": peak, "loss": loss,
    }


def largest(t, first, arguments):
    """`measure` at the most rows that fit, from `first` on."""
    for rows in [first, *(rows for rows in ROWS if rows < first)]:
        try:
            return measure(t, rows, arguments)
        except torch.OutOfMemoryError:
            print(f"{t.name}: {rows} rows do not fit", file=sys.stderr)
        # Outside of the handler, which holds the tensors of the failed step.
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    raise RuntimeError(f"{t.name}: the device has no room for one row")


def product_rate(device, size):
    """Operations per second of a bf16 product of size^3: the fastest of groups of ten, over about a second."""
    a, b = (torch.full((size, size), 0.01, dtype=torch.bfloat16, device=device) for _ in range(2))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.mm(a, b)
    best, end = float("inf"), time.perf_counter() + 1.2
    while time.perf_counter() < end:
        wait()
        start = time.perf_counter()
        for _ in range(10):
            torch.mm(a, b)
        wait()
        best = min(best, (time.perf_counter() - start) / 10)
    return 2 * size**3 / best


def environment(arguments):
    """The device and the versions."""
    cuda = arguments.device == "cuda"
    name = torch.cuda.get_device_name() if cuda else f"cpu {platform.machine()}"
    return {
        "program": "torch_gpu_step", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": {"name": name},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
                     "cudnn": torch.backends.cudnn.version() if cuda else None},
        "compile": arguments.compile, "attention": arguments.attention,
    }


def write(path, found):
    """Written aside and renamed: a run that is killed leaves the models before it."""
    aside = Path(f"{path}.part")
    aside.write_text(json.dumps(found, indent=1), encoding="utf-8")
    aside.replace(path)


def parsed():
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write what was measured, after every model")
    parser.add_argument("--like", metavar="FILE", help="begin with the rows of this report of gpu-check")
    parser.add_argument("--only", metavar="NAME", action="append", help="only the model of this name; repeatable")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after three that are not (default 10)")
    parser.add_argument("--compile", choices=("off", "default", "max-autotune-no-cudagraphs"), default="default",
                        help="mode of torch.compile; off is eager execution")
    parser.add_argument("--attention", choices=tuple(KERNELS), default="auto", help="kernels of attention")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=tuple(SIZES), default="real", help="tiny models try the program")
    return parser.parse_args()


def main():
    arguments = parsed()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        return "torch_gpu_step: PyTorch finds no CUDA device; --device cpu --size tiny tries the program"
    models = [t for t in SIZES[arguments.size] if not arguments.only or t.name in arguments.only]
    if not models:
        return f"torch_gpu_step: no model is called so; there are {', '.join(t.name for t in SIZES[arguments.size])}"
    try:
        report = json.loads(Path(arguments.like).read_text(encoding="utf-8")) if arguments.like else None
        like = {model["model"]: model["rows"] for model in report["parts"]["models"]["models"]} if report else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"torch_gpu_step: {arguments.like} is not a report of gpu-check with the part models: {error!r}"
    rate = product_rate(arguments.device, 8192 if arguments.size == "real" else 64)
    found = {**environment(arguments), "product_flops_per_s": rate, "models": []}
    for t in models:
        with sdpa_kernel(KERNELS[arguments.attention]):
            one = largest(t, like.get(t.name) or t.rows or ROWS[0], arguments)
        one["share"] = one["tokens_per_s"] * one["flops_per_token"] / rate
        found["models"].append(one)
        if arguments.json:
            write(arguments.json, found)
        memory = f", {one['peak_bytes'] / 2**30:.2f} GiB" if one["peak_bytes"] else ""
        print(f"{t.name}, {one['rows']} x {t.length}: {one['tokens_per_s'] / 1e3:.1f} k tokens/s, "
              f"{100 * one['share']:.1f} % of the bf16 product, {1e3 * one['step_s']:.1f} ms{memory}")
        torch.compiler.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())
