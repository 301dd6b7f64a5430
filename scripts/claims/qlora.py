"""QLoRA here, in bitsandbytes and in PEFT, on a model of real size.

    python qlora.py PROGRAMS SCRATCH TEXT

SCRATCH has SmolLM2 in `smollm2`. Every linear layer of its blocks, and random matrices with ordinary and heavy tails,
are quantised by `cpu_bench nf4` and by bitsandbytes on the CPU: the codes of 4 bits have to be the same, and the
scales and their codes the same where the scales' mean is. bitsandbytes' mean is PyTorch's, whose last bit depends on
its vectors; where it differs, the scales are compared with what bitsandbytes makes of them with our mean.

Then PEFT makes an adapter with random matrices beside the dequantised model and computes logits and gradients in
64-bit floats; `forward --quantize` computes them from the model itself. Both train it for 10 steps.

Prints `qlora CODES,SCALES,LOGITS,GRADIENTS,LOSSES ok|short`: codes that differ, and the largest relative differences.
Called by qlora.sh; runs in the environment of scripts/python_env.sh with scripts/bitsandbytes_env.sh.
"""

import sys
from pathlib import Path

from adapters import (  # sets what the packages below read
    compare_adapter, cross_entropy, finetune, judge, largest, peft_losses, run, sample_updates, training_of, with_lora,
    write_passages,
)

import numpy as np
import torch
from bitsandbytes.functional import quantize_4bit, quantize_blockwise
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

LOGITS, GRADIENTS, LOSSES = 1e-5, 1e-4, 1e-4
STEPS, BATCH, LENGTH = 10, 4, 64
TRAINING = training_of(STEPS, BATCH, LENGTH, 2e-4)
BLOCK, GROUP = 64, 256


def ours_of(program, scratch, values):
    """Codes, codes of scales, scales, offset and dequantised values of our program."""
    values.numpy().astype("<f4").tofile(scratch / "values")
    run(program, "nf4", scratch / "values", scratch / "quantised")
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


def compare(programs, scratch, dequantised):
    """Logits and gradients beside the dequantised model, in 64-bit floats, and beside the quantised one."""
    tuned = with_lora(AutoModelForCausalLM.from_pretrained(dequantised, attn_implementation="eager"))
    generator = sample_updates(tuned, scratch / "adapter")
    ids = torch.randint(3, tuned.config.vocab_size, (2, 48), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    options = ["--model", scratch / "smollm2", "--adapter", scratch / "adapter", "--quantize"]
    return compare_adapter(programs / "forward", tuned, inputs, cross_entropy, scratch, options)


def our_losses(programs, scratch, train):
    sets = TRAINING | {"model.path": scratch / "smollm2", "adapter.path": scratch / "adapter",
                       "adapter.quantize": "nf4", "data.train": train}
    return [step["loss"] for step in finetune(programs, sets, scratch / "run", "--ranks", 1)]


def main():
    programs, scratch, text = map(Path, sys.argv[1:])
    weights = load_file(scratch / "smollm2" / "model.safetensors")
    codes, scales, dequantised = compare_codes(programs / "cpu_bench", scratch, matrices(weights))
    directory = scratch / "dequantised"
    AutoModelForCausalLM.from_pretrained(scratch / "smollm2").save_pretrained(directory)
    save_file(weights | {name: dequantised[name] for name in weights.keys() & dequantised.keys()},
              directory / "model.safetensors", metadata={"format": "pt"})
    logits, gradients, _ = compare(programs, scratch, directory)
    train = scratch / "train.jsonl"
    rows = write_passages(text, train, STEPS * BATCH, 600)
    ours = our_losses(programs, scratch, train)
    theirs = peft_losses(directory, scratch / "adapter", scratch / "smollm2", rows, TRAINING)
    print(f"losses {ours[0]:.4f} -> {ours[-1]:.4f}, PEFT {theirs[0]:.4f} -> {theirs[-1]:.4f}", file=sys.stderr)
    losses = largest(ours, theirs)
    figures = [(logits, LOGITS), (gradients, GRADIENTS), (losses, LOSSES)]
    judge(f"qlora {codes},{scales},", figures, codes == 0 and scales == 0)


if __name__ == "__main__":
    main()
