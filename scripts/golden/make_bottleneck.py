"""Golden data for bottleneck adapters: writes `adapters/bottleneck_*`, two maps with an activation after layers of tiny
models of other goldens, in 64-bit floats: what OpenDelta's `AdapterModel` computes, in PyTorch alone.

crates/model-center/tests/golden/README.md describes every file and tensor. The data are committed; run the script only
to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_bottleneck.py            # writes the directories
    "$python" scripts/golden/make_bottleneck.py --check    # recomputes them and compares with the committed files
"""

import json

import torch
from safetensors.torch import save_file
from transformers import BertForSequenceClassification, GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration

import decoders
import seq2seq
from goldens import DEFAULT_OUT, run
from make_adapters import DEVIATION, class_loss, write_golden

ACTIVATIONS = {"gelu": torch.nn.GELU(), "relu": torch.nn.ReLU(), "silu": torch.nn.SiLU(),
               "gelu_new": torch.nn.GELU(approximate="tanh")}


class Bottleneck(torch.nn.Module):
    """`y + up(activation(down(y)))`."""

    def __init__(self, outputs, size, activation):
        super().__init__()
        self.down = torch.nn.Linear(outputs, size)
        self.up = torch.nn.Linear(size, outputs)
        self.activation = ACTIVATIONS[activation]

    def forward(self, y):
        return y + self.up(self.activation(self.down(y)))


# By directory: the model, its class, the loss of an output, PEFT's name of the task, the ends of the names of the
# modules, which are the target modules of the configuration, the size, the activation, and what is trained as a whole.
ADAPTERS = {
    # After attention and feed-forward.
    "bottleneck_llama": ("llama_a/lm", LlamaForCausalLM, decoders.loss_of, "CAUSAL_LM", ["down_proj", "o_proj"], 4,
                         "gelu", None),
    # After feed-forwards alone.
    "bottleneck_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, decoders.loss_of, "CAUSAL_LM",
                        ["transformer.h.0.mlp.c_proj", "transformer.h.1.mlp.c_proj"], 3, "relu", None),
    # Beside a classifier that is trained as a whole.
    "bottleneck_bert": ("bert_a/cls", BertForSequenceClassification, class_loss, "SEQ_CLS",
                        ["attention.output.dense", "output.dense"], 2, "gelu_new", ["classifier"]),
    # After attention to the encoder, too.
    "bottleneck_t5": ("t5_b/lm", T5ForConditionalGeneration, seq2seq.loss_of, "SEQ_2_SEQ_LM", ["o", "wo"], 3, "silu",
                      None),
}


def name_in_file(name):
    """The name of a parameter in a directory."""
    return f"base_model.model.{name}"


def build(name, seed):
    """The frozen model with bottlenecks whose values are all sampled, by the path of their module; dropout off."""
    model, kind, _, _, targets, size, activation, trained = ADAPTERS[name]
    tuned = kind.from_pretrained(DEFAULT_OUT / model, attn_implementation="eager")
    for parameter_name, parameter in tuned.named_parameters():
        parameter.requires_grad = any(parameter_name.startswith(f"{module}.") for module in trained or [])
    added = {}
    for path, module in tuned.named_modules():
        if any(path == target or path.endswith(f".{target}") for target in targets):
            weight = module.weight
            outputs = weight.shape[1] if type(module).__name__ == "Conv1D" else weight.shape[0]
            added[path] = Bottleneck(outputs, size, activation)
    for path, bottleneck in added.items():
        module = tuned.get_submodule(path)
        module.bottleneck = bottleneck
        module.register_forward_hook(lambda module, _, output: module.bottleneck(output))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted((n, p) for n, p in tuned.named_parameters() if p.requires_grad):
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * DEVIATION)
    return tuned


def save(tuned, name, directory):
    """Write the bottlenecks and what is trained as a whole, and the configuration."""
    model, _, _, task, targets, size, activation, trained = ADAPTERS[name]
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name_in_file(name): parameter.detach().clone().contiguous()
               for name, parameter in tuned.named_parameters() if parameter.requires_grad}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    last = {target.rsplit(".", 1)[-1] for target in targets} if "gpt2" not in name else set(targets)
    fields = {"peft_type": "BOTTLENECK", "task_type": task, "base_model_name_or_path": model,
              "bottleneck_size": size, "activation": activation, "target_modules": sorted(last),
              "modules_to_save": trained, "inference_mode": True}
    (directory / "adapter_config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def write_adapter(out, name, seed):
    model, _, loss_of, *_ = ADAPTERS[name]
    directory = out / "adapters" / name
    save(build(name, seed), name, directory)
    write_golden(directory, model, loss_of, lambda: build(name, seed), lambda tuned, batch: tuned(**batch),
                 name_in_file)


def write_all(out):
    for number, name in enumerate(ADAPTERS):
        write_adapter(out, name, 701 + number)


if __name__ == "__main__":
    run(__doc__, write_all)
