"""What the claims on adapters have in common: PEFT's adapters and its training, and runs of the programs here.

Packages are imported where they are used: adapter_memory.py counts the memory of processes that it forks, which begins
with its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))


def run(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {program}\n  reason: exit status {done.returncode}\n  fix: see its message above")


def relative(ours, theirs):
    """The norm of a difference over the norm."""
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def largest(ours, theirs):
    """The largest difference of two numbers, relative."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


LORA = {"task_type": "CAUSAL_LM", "target_modules": "all-linear", "r": 16, "lora_alpha": 32}


def with_adapter(model, settings):
    """A model with a new adapter of these settings, without dropout."""
    from make_adapters import config_of
    from peft import get_peft_model

    return get_peft_model(model, config_of(settings))


def with_lora(model, **settings):
    """A model with new updates of rank 16 for all linear layers, or of other settings; without dropout."""
    return with_adapter(model, LORA | settings)


def sample_updates(tuned, directory):
    """Random second matrices in place of zeros, and random factors, saved in a directory; the generator, for what
    follows."""
    import torch

    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(tuned.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            elif "ia3_l" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    tuned.save_pretrained(directory)
    return generator


def compare_adapter(forward, tuned, inputs, loss_of, scratch, options):
    """The largest relative differences of logits and of gradients, and the number of these: `forward` with its options
    against PEFT in 64-bit floats. Logits count where `seen` of the inputs' mask allows, if the model has one for each
    token."""
    from goldens import in_64_bits
    from make_adapters import name_in_file
    from safetensors.torch import load_file, save_file

    path, out = scratch / "inputs.safetensors", scratch / "out.safetensors"
    # Labels may be the tokens themselves.
    save_file({name: tensor.clone() for name, tensor in inputs.items()}, path)
    with in_64_bits():
        wide = tuned.double().eval()
        output = wide(**inputs)
        loss_of(output, inputs["labels"]).backward()
    run(forward, *options, "--grads", "--inputs", path, "--out", out)
    ours, theirs = load_file(out), output.logits
    is_causal = theirs.shape[:2] == inputs["input_ids"].shape
    seen = inputs["attention_mask"].bool() if is_causal else slice(None)
    logits = relative(ours["logits"].reshape(theirs.shape)[seen], theirs[seen])
    gradients = [relative(ours[f"grad.{name_in_file(name)}"], parameter.grad)
                 for name, parameter in wide.named_parameters() if parameter.requires_grad]
    assert len(gradients) == sum(name.startswith("grad.") for name in ours)
    return logits, max(gradients), len(gradients)


def cross_entropy(output, labels, shifts=True):
    """Of next tokens, or of what is in the same place."""
    import torch

    logits = output.logits
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def write_passages(text, path, count, size):
    """Passages of as many characters one after the other, as records; returns them."""
    text = " ".join(text.read_text(encoding="utf-8").split())
    rows = [text[start:start + size] for start in range(0, size * count, size)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return rows


def peft_losses(model, adapter, tokenizer, rows, training):
    """The losses of PEFT's steps from a saved adapter on the beginnings of passages."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=training["train.lr"], weight_decay=training["train.weight_decay"])
    batch, length = training["train.batch_size"], training["data.max_length"]
    losses = []
    for step in range(training["train.steps"]):
        ids = [tokenizer(row, add_special_tokens=False)["input_ids"][:length]
               for row in rows[step * batch:(step + 1) * batch]]
        assert all(len(row) == length for row in ids), "the passages are too short"
        ids = torch.tensor(ids)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, training["train.clip_norm"])
        optimizer.step()
        losses.append(loss.item())
    return losses


def training_of(steps, batch, length, rate):
    """The settings of training that its peers here have too, on passages unless another task is set."""
    return {"data.task": "language", "data.max_length": length, "train.steps": steps, "train.batch_size": batch,
            "train.lr": rate, "train.weight_decay": 0.01, "train.clip_norm": 1.0}


def settings_of(sets, out):
    """Arguments for a run into a directory, in the order of the data, at a constant rate."""
    sets = {"adapter.method": "lora", "data.shuffle": "false", "train.schedule": "constant", "log.every": 1,
            "log.quiet": "true", "checkpoint.minutes": 0, "output.dir": out} | sets
    return [f"--set={key}={value}" for key, value in sets.items()]


def steps_of(out, steps):
    """The records of a run's steps."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if record.get("kind") == "step"]
    assert len(records) == steps, f"{len(records)} records of steps"
    return records


def finetune(programs, sets, out, *arguments):
    """The records of the steps of a run."""
    run(programs / "finetune", *settings_of(sets, out), *arguments)
    return steps_of(out, sets["train.steps"])
