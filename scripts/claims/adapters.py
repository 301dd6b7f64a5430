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
    """Random second matrices in place of zeros, random factors, virtual tokens or keys and values, saved in a
    directory; the generator, for what follows."""
    import torch

    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(tuned.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            elif "ia3_l" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif "prompt_encoder" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    tuned.save_pretrained(directory)
    return generator


def compare_adapter(forward, tuned, inputs, loss_of, scratch, options, outputs_of=None):
    """The largest relative differences of logits and of gradients, and the number of these: `forward` with its options
    against PEFT in 64-bit floats, which computes `outputs_of` the model and its inputs, by default a call. Logits count
    where the inputs' mask has a token, if the model has one for each; logits of virtual tokens never do."""
    from goldens import in_64_bits
    from make_adapters import name_in_file
    from safetensors.torch import load_file, save_file

    path, out = scratch / "inputs.safetensors", scratch / "out.safetensors"
    # Labels may be the tokens themselves.
    save_file({name: tensor.clone() for name, tensor in inputs.items()}, path)
    with in_64_bits():
        wide = tuned.double().eval()
        output = outputs_of(wide, inputs) if outputs_of else wide(**inputs)
        loss_of(output, inputs["labels"]).backward()
    run(forward, *options, "--grads", "--inputs", path, "--out", out)
    ours, theirs = load_file(out), output.logits
    if theirs.dim() == 3:
        theirs = theirs[:, -inputs["labels"].shape[1]:]
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


def open_in_peft(model, adapter):
    """A decoder with a saved adapter that is trained further. PEFT opens virtual tokens for inference only, so that
    these are written into a new adapter of the same configuration."""
    import torch
    from peft import PeftConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    config = PeftConfig.from_pretrained(adapter)
    if not config.is_prompt_learning:
        return PeftModel.from_pretrained(model, adapter, is_trainable=True)
    config.inference_mode = False
    tuned = get_peft_model(model, config)
    with torch.no_grad():
        saved = load_file(Path(adapter) / "adapter_model.safetensors")["prompt_embeddings"]
        tuned.prompt_encoder["default"].embedding.weight.copy_(saved)
    return tuned


def peft_losses(model, adapter, tokenizer, rows, training):
    """The losses of PEFT's steps from a saved adapter on the beginnings of passages."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    model = open_in_peft(model, adapter).train()
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


LAYOUTS = {
    "ZeRO-3": ["--ranks", "2", "--set", "parallel.zero=3", "--set", "train.micro_batch_size=2"],
    "tensor 3": ["--ranks", "3", "--set", "parallel.tensor=3"],
    "pipeline 2": ["--ranks", "2", "--set", "parallel.pipeline=2", "--set", "train.micro_batch_size=2"],
}


def in_every_layout(programs, sets, out):
    """The model's directory of a run on one rank, its losses, and the largest relative difference of a loss of runs of
    three ranks with tensor parallelism, two with ZeRO-3 and two pipeline stages; batches are of four samples."""
    def losses(name, arguments):
        return [step["loss"] for step in finetune(programs, sets, out / name.replace(" ", "_"), *arguments)]

    one, most = losses("one", ["--ranks", "1"]), 0.0
    for name, arguments in LAYOUTS.items():
        difference = largest(losses(name, arguments), one)
        print(f"{name}: losses {difference:.1e}", file=sys.stderr)
        most = max(most, difference)
    return out / "one" / "model", one, most


def logits_of(programs, path, model, *arguments):
    """`forward`'s logits of a decoder for a file of inputs, where the mask has a token."""
    from safetensors.torch import load_file

    out, inputs = path.with_name("logits.safetensors"), load_file(path)
    run(programs / "forward", "--model", model, *arguments, "--inputs", path, "--out", out)
    return load_file(out)["logits"].reshape(*inputs["input_ids"].shape, -1)[inputs["attention_mask"].bool()]


def peft_logits(path, model, adapter):
    """PEFT's logits of a decoder with a saved adapter, in 64-bit floats and in the same places."""
    import torch
    from goldens import in_64_bits
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    inputs = load_file(path)
    model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    with torch.no_grad(), in_64_bits():
        logits = PeftModel.from_pretrained(model, adapter).double().eval()(**inputs).logits
    # Without the logits of virtual tokens.
    return logits[:, -inputs["input_ids"].shape[1]:][inputs["attention_mask"].bool()]


def write_t5(directory):
    """A T5 of t5-small's width with random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(7)
    config = T5Config(vocab_size=4000, d_model=512, d_kv=64, d_ff=2048, num_layers=3, num_heads=8, dropout_rate=0.0,
                      decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(directory)


def judge(text, figures, is_ok=True):
    """Ends a claim with the verdict: each figure is to be at most its bound. `text` precedes the figures."""
    from speed import verdict

    is_ok = is_ok and all(value <= bound for value, bound in figures)
    verdict(text + ",".join(f"{value:.1e}" for value, _ in figures), "ok" if is_ok else "short")
