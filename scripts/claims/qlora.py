"""QLoRA here, in bitsandbytes and in PEFT, on a model of real size.

    python qlora.py PROGRAMS SCRATCH TEXT

SCRATCH has SmolLM2 in `smollm2`. Every linear layer of its blocks, and random matrices with ordinary and heavy tails,
are quantised by the example `nf4` and by bitsandbytes on the CPU: the codes of 4 bits have to be the same, and the
scales and their codes the same where the scales' mean is. bitsandbytes' mean is PyTorch's, whose last bit depends on
its vectors; where it differs, the scales are compared with what bitsandbytes makes of them with our mean.

Then PEFT makes an adapter with random matrices beside the dequantised model and computes logits and gradients in
64-bit floats; `forward --quantize` computes them from the model itself. Both train it for 10 steps.

Prints `qlora CODES,SCALES,LOGITS,GRADIENTS,LOSSES ok|short`: codes that differ, and the largest relative differences.
Called by qlora.sh; runs in the environment of scripts/python_env.sh with scripts/bitsandbytes_env.sh.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from bitsandbytes.functional import quantize_4bit, quantize_blockwise  # noqa: E402
from goldens import in_64_bits  # noqa: E402
from make_adapters import name_in_file  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

LOGITS, GRADIENTS, LOSSES = 1e-5, 1e-4, 1e-4
STEPS, BATCH, LENGTH, RATE = 10, 4, 64, 2e-4
BLOCK, GROUP = 64, 256


def run(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {program}\n  reason: exit status {done.returncode}\n  fix: see its message above")


def relative(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def ours_of(program, scratch, values):
    """Codes, codes of scales, scales, offset and dequantised values of the example program."""
    values.numpy().astype("<f4").tofile(scratch / "values")
    run(program, scratch / "values", scratch / "quantised")
    data = (scratch / "quantised").read_bytes()
    count, blocks = values.numel(), values.numel() // BLOCK
    codes = np.frombuffer(data, np.uint8, count // 2)
    scale_codes = np.frombuffer(data, np.uint8, blocks, count // 2)
    numbers = np.frombuffer(data, "<f4", offset=count // 2 + blocks)
    groups = -(-blocks // GROUP)
    assert len(numbers) == groups + 1 + count
    return codes, scale_codes, numbers[:groups], numbers[groups], numbers[groups + 1:]


def compare_codes(program, scratch, tensors):
    """Codes of 4 bits and of scales that differ, of all tensors; the dequantised tensors."""
    codes_apart, scales_apart, other_means, dequantised = 0, 0, 0, {}
    for name, values in tensors.items():
        codes, scale_codes, scales, offset, wide = ours_of(program, scratch, values)
        theirs, state = quantize_4bit(values, quant_type="nf4", compress_statistics=True)
        codes_apart += int((codes != theirs.flatten().numpy()).sum())
        if np.float32(state.offset.item()) == offset:
            expected, expected_scales = state.absmax, state.state2.absmax
        else:
            other_means += 1
            _, plain = quantize_4bit(values, quant_type="nf4", compress_statistics=False)
            assert abs(offset - state.offset.item()) <= 4e-7 * abs(offset), f"{name}: mean {offset}"
            expected, second = quantize_blockwise(plain.absmax - torch.tensor(offset), blocksize=GROUP)
            expected_scales = second.absmax
        scales_apart += int((scale_codes != expected.numpy()).sum()) + int((scales != expected_scales.numpy()).sum())
        dequantised[name] = torch.from_numpy(wide.copy()).reshape(values.shape)
    print(f"{len(tensors)} matrices: {codes_apart} codes and {scales_apart} scales differ, "
          f"{other_means} means are PyTorch's but for the last bit", file=sys.stderr)
    return codes_apart, scales_apart, dequantised


def matrices(weights):
    generator = torch.Generator().manual_seed(3)
    random = {f"normal {deviation}": torch.randn(1536, 576, generator=generator) * deviation
              for deviation in (0.02, 1.0)}
    random["heavy"] = torch.randn(512, 1024, generator=generator) / torch.randn(512, 1024, generator=generator)
    return random | {name: tensor for name, tensor in weights.items() if "proj.weight" in name}


def compare_adapter(programs, scratch, dequantised):
    """Logits and gradients beside the dequantised model, in 64-bit floats, and beside the quantised one."""
    tuned = get_peft_model(
        AutoModelForCausalLM.from_pretrained(dequantised, attn_implementation="eager"),
        LoraConfig(lora_dropout=0.0, task_type="CAUSAL_LM", target_modules="all-linear", r=16, lora_alpha=32))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(tuned.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    tuned.save_pretrained(scratch / "adapter")
    ids = torch.randint(3, tuned.config.vocab_size, (2, 48), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    save_file(inputs, scratch / "inputs.safetensors")
    with in_64_bits():
        wide = tuned.double().eval()
        output = wide(**inputs)
        logits = output.logits
        torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].flatten()).backward()
    run(programs / "forward", "--model", scratch / "smollm2", "--adapter", scratch / "adapter", "--quantize", "--grads",
        "--inputs", scratch / "inputs.safetensors", "--out", scratch / "out.safetensors")
    ours = load_file(scratch / "out.safetensors")
    gradients = [relative(ours[f"grad.{name_in_file(name)}"], parameter.grad)
                 for name, parameter in wide.named_parameters() if parameter.requires_grad]
    assert len(gradients) == sum(name.startswith("grad.") for name in ours)
    return relative(ours["logits"].reshape(logits.shape), logits), max(gradients)


def peft_losses(scratch, dequantised, rows):
    tokenizer = AutoTokenizer.from_pretrained(scratch / "smollm2")
    model = AutoModelForCausalLM.from_pretrained(dequantised, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, scratch / "adapter", is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        ids = torch.tensor([tokenizer(row, add_special_tokens=False)["input_ids"][:LENGTH]
                            for row in rows[step * BATCH:(step + 1) * BATCH]])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(programs, scratch, train):
    sets = {"model.path": scratch / "smollm2", "adapter.method": "lora", "adapter.path": scratch / "adapter",
            "adapter.quantize": "nf4", "data.task": "language", "data.train": train, "data.max_length": LENGTH,
            "data.shuffle": "false", "train.steps": STEPS, "train.batch_size": BATCH, "train.lr": RATE,
            "train.schedule": "constant", "train.weight_decay": 0.01, "train.clip_norm": 1.0, "log.every": 1,
            "log.quiet": "true", "checkpoint.minutes": 0, "output.dir": scratch / "run"}
    run(programs / "finetune", "--ranks", 1, *(f"--set={key}={value}" for key, value in sets.items()))
    records = [json.loads(line) for line in (scratch / "run" / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record.get("kind") == "step"]


def main():
    programs, scratch, text = map(Path, sys.argv[1:])
    weights = load_file(scratch / "smollm2" / "model.safetensors")
    codes, scales, dequantised = compare_codes(programs / "examples" / "nf4", scratch, matrices(weights))
    directory = scratch / "dequantised"
    AutoModelForCausalLM.from_pretrained(scratch / "smollm2").save_pretrained(directory)
    save_file(weights | {name: dequantised[name] for name in weights.keys() & dequantised.keys()},
              directory / "model.safetensors", metadata={"format": "pt"})
    logits, gradients = compare_adapter(programs, scratch, directory)
    text = " ".join(text.read_text(encoding="utf-8").split())
    rows = [text[start:start + 600] for start in range(0, 600 * STEPS * BATCH, 600)]
    train = scratch / "train.jsonl"
    train.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    ours, theirs = our_losses(programs, scratch, train), peft_losses(scratch, directory, rows)
    print(f"losses {ours[0]:.4f} -> {ours[-1]:.4f}, PEFT {theirs[0]:.4f} -> {theirs[-1]:.4f}", file=sys.stderr)
    losses = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    figures = [(logits, LOGITS), (gradients, GRADIENTS), (losses, LOSSES)]
    is_ok = codes == 0 and scales == 0 and all(value <= bound for value, bound in figures)
    figure = ",".join(f"{value:.1e}" for value, _ in figures)
    print(f"qlora {codes},{scales},{figure} {'ok' if is_ok else 'short'}")
    sys.exit(not is_ok)


if __name__ == "__main__":
    main()
