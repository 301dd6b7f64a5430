"""Memory and speed of LoRA here and in PEFT, in turn, on this machine.

    python adapter_memory.py FINETUNE SCRATCH TEXT [--pairs 3]

SCRATCH has SmolLM2 in `smollm2`. Three programs run one after the other, each in a process of its own on two threads,
4 sequences of 512 tokens a step, AdamW, single precision: PEFT with transformers (this file with --peer), `finetune`
without recomputation, and `finetune` beside the model in NF4 with its blocks recomputed. Memory is the peak of the
process by the kernel's count, everything included; tokens/s are the median step's, after two.

The last line on stdout is `adapter-memory memory=M,speed=S,nf4=Q ok|short|noisy`, medians over the rounds of ours over
PEFT's; noisy when PEFT's own tokens/s spread by more than 10 %. Called by adapter-memory.sh.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from adapters import LORA, settings_of, steps_of, training_of, with_lora, write_passages

THREADS, BATCH, LENGTH, STEPS, WARMUP, RATE = 2, 4, 512, 5, 2, 2e-4
MAX_MEMORY, LEAST_SPEED, MAX_NF4, MAX_SPREAD = 0.5, 1.3, 0.35, 0.10


def peer(model, text, dtype, batch, nf4):
    """PEFT's steps, with the frozen weights in a dtype or by bitsandbytes in NF4: prints tokens/s."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(THREADS)
    tokenizer, dtype = AutoTokenizer.from_pretrained(model), getattr(torch, dtype)
    loading = {}
    if nf4:
        from transformers import BitsAndBytesConfig

        loading["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                            bnb_4bit_compute_dtype=dtype)
    tuned = with_lora(AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **loading)).train()
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True)
    rows = [json.loads(line)["text"] for line in Path(text).read_text(encoding="utf-8").splitlines()]
    times = []
    for step in range(WARMUP + STEPS):
        ids = torch.tensor([tokenizer(row)["input_ids"][:LENGTH] for row in rows[step * batch:(step + 1) * batch]])
        begin = time.perf_counter()
        loss = tuned(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    print(batch * LENGTH / statistics.median(times[WARMUP:]))


def measured(command, out=os.devnull):
    """Runs a command; its peak resident bytes."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.execv(command[0], command)
    _, status, usage = os.wait4(process, 0)
    if status != 0:
        sys.exit(f"error: {command[0]}\n  reason: status {status}\n  fix: see its message above")
    # Linux counts the peak in KiB.
    return usage.ru_maxrss * 1024


def run_peer(model, rows, *options):
    """PEFT's peak of memory and tokens/s."""
    out = rows.with_name("peer.txt")
    peak = measured([sys.executable, __file__, "--peer", str(model), str(rows), *options], str(out))
    return peak, float(out.read_text().strip().splitlines()[-1])


def run_ours(finetune, model, rows, name, further, batch=BATCH):
    """Our peak of memory and tokens/s."""
    out = rows.with_name(name)
    sets = training_of(WARMUP + STEPS, batch, LENGTH, RATE) | {
        "model.path": model, "adapter.rank": LORA["r"], "adapter.alpha": LORA["lora_alpha"],
        "data.train": rows, "train.micro_batch_size": batch, "train.weight_decay": 0.0, "log.tensorboard": "false",
        "save.which": "none", "device.threads": THREADS} | further
    peak = measured([str(finetune), "--overwrite", "--ranks", "1", *settings_of(sets, out)])
    steps = steps_of(out, WARMUP + STEPS)
    return peak, statistics.median(record["time"]["tokens_per_s"] for record in steps[WARMUP:])


def say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--dtype", default="float32", help="with --peer: PyTorch's name of a dtype")
    parser.add_argument("--batch", type=int, default=BATCH, help="with --peer: sequences of a step")
    parser.add_argument("--nf4", action="store_true", help="with --peer: the frozen weights in NF4")
    arguments = parser.parse_args()
    if arguments.peer:
        return peer(*arguments.paths, arguments.dtype, arguments.batch, arguments.nf4)
    finetune, scratch, text = arguments.paths
    rows = scratch / "train.jsonl"
    write_passages(text, rows, BATCH * (WARMUP + STEPS), 4000)
    quantised = {"adapter.quantize": "nf4", "train.recompute": "blocks"}
    rounds, model = [], scratch / "smollm2"
    for number in range(arguments.pairs):
        theirs = run_peer(model, rows)
        ours = run_ours(finetune, model, rows, "lora", {"train.recompute": "none"})
        nf4 = run_ours(finetune, model, rows, "qlora", quantised)
        rounds.append((theirs, ours, nf4))
        say(f"round {number + 1}: " + "; ".join(f"{name} {peak / 2**30:.2f} GiB, {speed:.0f} tokens/s" for
                                                name, (peak, speed) in zip(("PEFT", "ours", "NF4"), rounds[-1])))
    memory = statistics.median(ours[0] / theirs[0] for theirs, ours, _ in rounds)
    speed = statistics.median(ours[1] / theirs[1] for theirs, ours, _ in rounds)
    nf4 = statistics.median(nf4[0] / theirs[0] for theirs, _, nf4 in rounds)
    speeds = [theirs[1] for theirs, *_ in rounds]
    spread = (max(speeds) - min(speeds)) / statistics.median(speeds)
    is_ok = memory <= MAX_MEMORY and speed >= LEAST_SPEED and nf4 <= MAX_NF4
    outcome = "noisy" if spread > MAX_SPREAD else "ok" if is_ok else "short"
    print(f"adapter-memory memory={memory:.3f}x,speed={speed:.3f}x,nf4={nf4:.3f}x {outcome}")
    sys.exit({"ok": 0, "short": 1, "noisy": 75}[outcome])


if __name__ == "__main__":
    main()
