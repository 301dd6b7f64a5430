"""The PyTorch side of the claim scratch-gpt2: the model that both sides begin with, and the same training.

    python scratch_gpt2.py prepare ASSETS DIR
    python scratch_gpt2.py compare DIR RECIPE [--threads 2]

`prepare` makes DIR/model, a GPT-2 of 6 layers of 384 with GPT-2's own vocabulary, initialized by transformers from a
fixed seed and without dropout, and the directories DIR/train and DIR/eval of addresses: every tenth is held out.
`compare` trains the same model by the recipe in PyTorch and prints the verdict on what finetune left in DIR/run: how
its loss on the held-out rows compares. Both sides read the same batches: rows are cut from the tokens as
docs/recipes.md describes, and come in the order that crates/model-center-data/src/data/order.rs computes from the seed,
which is written here a second time. The first steps, whose weights are still nearly the same, prove it: the loss of the
first must agree to 1e-4, the first twenty losses to 1e-3.

The last line on stdout is `scratch-gpt2 FIGURE ok|short`, exit status 0 or 1.
"""

import argparse
import json
import math
import os
import sys
import tomllib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast  # noqa: E402

WORD = (1 << 32) - 1
LONG = (1 << 64) - 1
# Rows of held-out text that are judged at a time.
EVAL_ROWS = 16
# The number of steps whose losses are compared.
SAME_STEPS = 20


def say(text):
    print(text, file=sys.stderr, flush=True)


def prepare(assets, directory):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=384, n_head=6, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)
    GPT2LMHeadModel(config).save_pretrained(directory / "model")
    tokenizer = GPT2TokenizerFast(str(assets / "tokenizers/gpt2/vocab.json"),
                                  str(assets / "tokenizers/gpt2/merges.txt"))
    tokenizer.save_pretrained(directory / "model")
    for name in ("train", "eval"):
        (directory / name).mkdir()
    for index, file in enumerate(sorted((assets / "prose/sotu").glob("*.txt"))):
        (directory / ("eval" if index % 10 == 9 else "train") / file.name).write_bytes(file.read_bytes())


def pack(tokenizer, directory, length):
    """The rows that a directory of texts is cut into."""
    ids = []
    for file in sorted(directory.glob("*.txt")):
        ids += tokenizer(file.read_text(encoding="utf-8"),
                         add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
    ends = [end for end in range(length, len(ids) + 1, length)]
    if len(ids) % length == 1:
        ends[-1] -= 1
    if len(ids) % length:
        ends.append(len(ids))
    return [ids[start:end] for start, end in zip([0] + ends, ends)]


def philox(key, counter):
    """The first 32-bit word of a block of Philox4x32-10."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0


def key_of(seed, purpose):
    """The key of a purpose under a seed: FNV-1a of its name, and the finalizer of SplitMix64."""
    hash_ = 0xCBF29CE484222325
    for byte in purpose.encode():
        hash_ = (hash_ ^ byte) * 0x100000001B3 & LONG
    z = (seed * 0x9E3779B97F4A7C15 + hash_) & LONG
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & LONG
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & LONG
    z ^= z >> 31
    return z & WORD, z >> 32


def place(index, items, key, epoch):
    """The item at an index of an epoch's order, out of `items`."""
    bits = (items - 1).bit_length()
    left_bits, right_bits = bits // 2, bits - bits // 2
    while True:
        left, right = index >> right_bits, index & ((1 << right_bits) - 1)
        for turn in range(16):
            stream = (epoch & WORD, epoch >> 32, 0)
            if turn % 2 == 0:
                left ^= philox(key, (turn << 24 | right, *stream)) & ((1 << left_bits) - 1)
            else:
                right ^= philox(key, (turn << 24 | left, *stream)) & ((1 << right_bits) - 1)
        index = left << right_bits | right
        if index < items:
            return index


def batches(rows, size, seed):
    """Rows of one batch after the other, epoch after epoch; what fills no batch is left out."""
    key, epoch = key_of(seed, "data.order"), 0
    while True:
        for first in range(0, len(rows) - size + 1, size):
            yield [rows[place(first + at, len(rows), key, epoch)] for at in range(size)]
        epoch += 1


def loss_sum(model, rows):
    """The summed next-token loss, and the number of target tokens."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])  # [B, L]
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])  # [B, L]
    logits = model(ids).logits  # [B, L, V]
    tokens = labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens.flatten(), reduction="sum")
    return losses, int((tokens != -100).sum())


def rate(train, step):
    """The learning rate of a step from 0 on: a linear rise and fall."""
    steps, warmup = train["steps"], train["warmup"]
    return train["lr"] * (step / warmup if step < warmup else (steps - step) / (steps - warmup))


def learn(model, next_loss, train):
    """The losses of all steps; `next_loss` computes the mean loss of the next batch."""
    decays = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decays, "weight_decay": train["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train["lr"], betas=tuple(train["betas"]), eps=1e-8, fused=True)
    losses = []
    for step in range(train["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = rate(train, step)
        loss = next_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            say(f"PyTorch: step {step + 1}, loss {losses[-1]:.4f}")
    return losses


def judge(model, rows):
    """The mean loss per token of the rows."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(rows), EVAL_ROWS):
            part, count = loss_sum(model, rows[first:first + EVAL_ROWS])
            total, tokens = total + part.item(), tokens + count
    return total / tokens


def compare(directory, recipe):
    settings = tomllib.loads(recipe.read_text())
    data, train = settings["data"], settings["train"]
    records = [json.loads(line) for line in (directory / "run/metrics.jsonl").read_text().splitlines()]
    ours = [record["metrics"]["loss"] for record in records if record["kind"] == "eval"][-1]
    steps = [record["loss"] for record in records if record["kind"] == "step"]

    tokenizer = AutoTokenizer.from_pretrained(directory / "model")
    model = GPT2LMHeadModel.from_pretrained(directory / "model").train()
    rows = pack(tokenizer, directory / "train", data["max_length"])
    held_out = pack(tokenizer, directory / "eval", data["max_length"])[:data["eval_limit"]]
    say(f"{len(rows)} rows to learn from, {len(held_out)} held out; untrained loss {judge(model, held_out):.4f}")
    source = batches(rows, train["batch_size"], train["seed"])

    def next_loss():
        total, tokens = loss_sum(model, next(source))
        return total / tokens

    losses = learn(model, next_loss, train)
    # Other rows, weights or rates show at once; later both runs drift apart by rounding.
    for step, (mine, other) in enumerate(zip(steps[:SAME_STEPS], losses), start=1):
        if not abs(mine - other) <= (1e-4 if step == 1 else 1e-3) * other:
            sys.exit(f"error: step {step}\n  reason: its loss is {mine} here and {other} in PyTorch: "
                     "other rows, weights or learning rates\n"
                     "  fix: look at how the text is cut and ordered, and at the schedule")
    theirs = judge(model, held_out)
    apart = ours / theirs - 1
    say(f"loss on held-out addresses: ours {ours:.4f}, PyTorch {theirs:.4f}")
    outcome = "ok" if math.isfinite(apart) and abs(apart) <= 0.01 else "short"
    print(f"scratch-gpt2 {ours:.4f}/{theirs:.4f}={100 * apart:+.2f}% {outcome}")
    sys.exit(0 if outcome == "ok" else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("prepare")
    one.add_argument("assets", type=Path)
    one.add_argument("dir", type=Path)
    two = parts.add_parser("compare")
    two.add_argument("dir", type=Path)
    two.add_argument("recipe", type=Path)
    two.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare(arguments.assets, arguments.dir)
        return
    torch.set_num_threads(arguments.threads)
    compare(arguments.dir, arguments.recipe)


if __name__ == "__main__":
    main()
