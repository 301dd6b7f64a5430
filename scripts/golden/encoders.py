"""Golden data of encoders: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Imported by make_bert.py, make_roberta.py and their like, each for one family;
crates/model-center/tests/golden/README.md describes every file and tensor.

Weights are initialized in 32-bit floats, saved as they are, and widened for all arithmetic, so a reader of the 32-bit
file starts from exactly the numbers the goldens were computed with.
"""

import sys
from dataclasses import dataclass, field
from typing import Callable

import torch
from safetensors.torch import save_file

from goldens import (TRAINING, check_saved, gradient_norm, in_64_bits, initialize_weights, run, stored_parameters,
                     train_twice)


def has_norm_in_its_name(name):
    """Whether a parameter is a layer norm's."""
    return "LayerNorm" in name or "layer_norm" in name or ".ln." in name


@dataclass
class Family:
    """A family and its tiny models."""

    # By name: `seed`, `labels` of the classifier, `config`, `masks` with a `#` for each token; `kind`, the class of the
    # configuration, and `heads`, the class of each; `masked_tokens`, the positions of tokens (not padding) with mask 0.
    models: dict
    # The head that is trained.
    trained: str = "cls"
    # What turns all dropout off.
    off: dict = field(default_factory=lambda: {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    # Inputs that its classes have under another name.
    renamed: dict = field(default_factory=dict)
    # Whether a parameter of this name is a norm's.
    is_norm: Callable[[str], bool] = has_norm_in_its_name

    def build(self, spec, head):
        """A model with its 32-bit weights sampled, dropout off, attention spelled out."""
        classes = {"cls": {"num_labels": spec["labels"]}, "tokens": {"num_labels": TOKEN_CLASSES}}.get(head, {})
        config = spec["kind"](**spec["config"], **classes, **self.off, attn_implementation="eager")
        model = spec["heads"][head](config)
        initialize_weights(model, spec["seed"], self.is_norm)
        return model


# Classes of the heads for tokens; no other size of a model is equal.
TOKEN_CLASSES = 7


def sample_batch(spec, seed):
    """One batch of inputs and the labels of every head."""
    config, generator = spec["config"], torch.Generator().manual_seed(seed)
    pad = config.get("pad_token_id", 0)

    def integers(low, high, shape):
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64)

    mask = torch.tensor([[int(c == "#") for c in row] for row in spec["masks"]], dtype=torch.int64)  # [B, L]
    sampled = integers(1, config["vocab_size"], mask.shape)  # [B, L]
    ids = torch.where(mask == 1, sampled, torch.tensor(pad))  # [B, L]
    # The padding id also appears once at a position that is attended to: its embedding row is used there but,
    # as in torch's `padding_idx`, receives no gradient from the lookup.
    ids[0, 5] = pad
    for place in spec.get("masked_tokens", []):
        ids[place] = sampled[place]
    types = integers(0, config.get("type_vocab_size", 1), mask.shape) * mask  # [B, L]
    masked = (torch.rand(mask.shape, generator=generator) < 0.3) & (mask == 1)  # [B, L]
    masked[0, 1] = True
    words = torch.where(masked, integers(1, config["vocab_size"], mask.shape), torch.tensor(-100))  # [B, L]
    batch = {
        "input_ids": ids, "attention_mask": mask, "token_type_ids": types, "mlm_labels": words,
        "cls_labels": integers(0, spec["labels"], mask.shape[:1]),  # [B]
        "nsp_labels": integers(0, 2, mask.shape[:1]),  # [B]
    }
    # After the others, so that these keep the values that they had before there were heads for tokens.
    counts = (torch.rand(mask.shape, generator=generator) < 0.7) & (mask == 1)  # [B, L]
    counts[0, 1] = True
    classes = integers(0, TOKEN_CLASSES, mask.shape)  # [B, L]
    start = integers(0, mask.shape[1], mask.shape[:1])  # [B]
    return batch | {
        "tokens_labels": torch.where(counts, classes, torch.tensor(-100)),  # [B, L]
        "start_positions": start, "end_positions": torch.clamp(start + 2, max=mask.shape[1] - 1),  # [B] each
        "replaced_labels": integers(0, 2, mask.shape),  # [B, L]
    }


def inputs_of(spec, batch, head):
    """The tensors one head takes, under the names its `forward` gives them. A model with one type, or
    without types, is told none."""
    types = ["token_type_ids"] if spec["config"].get("type_vocab_size", 1) > 1 else []
    inputs = {name: batch[name] for name in ["input_ids", "attention_mask", *types]}
    if head == "pretraining":
        return inputs | {"labels": batch["mlm_labels"], "next_sentence_label": batch["nsp_labels"]}
    if head == "qa":
        return inputs | {name: batch[name] for name in ("start_positions", "end_positions")}
    return inputs | {"labels": batch[f"{head.split('/')[-1]}_labels"]}


def evaluate(model, inputs):
    """Hidden states, pooler output, logits, loss and all gradients of a 64-bit model."""
    pooled = []
    base = model.base_model
    if getattr(base, "pooler", None) is not None:
        # ALBERT's pooler is a linear layer, and what follows it a module of its own.
        pooler = getattr(base, "pooler_activation", base.pooler)
        pooler.register_forward_hook(lambda _module, _input, output: pooled.append(output))
    output = model(**inputs, output_hidden_states=True)
    output.loss.backward()
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1

    golden = {f"hidden.{i}": hidden for i, hidden in enumerate(output.hidden_states)}  # each [B, L, D]
    for value in pooled:
        golden["pooler"] = value  # [B, D]
    if "prediction_logits" in output:
        golden["logits"] = output.prediction_logits  # [B, L, V]
        sentences = "sop_logits" if "sop_logits" in output else "seq_relationship_logits"
        golden["seq_relationship_logits"] = output[sentences]  # [B, 2]
    elif "start_logits" in output:
        golden |= {name: output[name] for name in ("start_logits", "end_logits")}  # [B, L] each
    else:
        golden["logits"] = output.logits
    golden["loss"] = output.loss  # []
    golden |= {f"grad.{name}": parameter.grad for name, parameter in stored_parameters(model).items()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in golden.items()}


def write_head(family, directory, spec, head):
    """One Hugging Face directory with its inputs and goldens."""
    model = family.build(spec, head)
    model.save_pretrained(directory)
    model = model.double().eval()
    check_saved(directory, model)

    inputs = inputs_of(spec, sample_batch(spec, spec["seed"] + 1), head)
    save_file(inputs, directory / "inputs.safetensors")
    with in_64_bits():
        golden = evaluate(model, {family.renamed.get(name, name): tensor for name, tensor in inputs.items()})
    save_file(golden, directory / "golden.safetensors")
    return golden


def write_training(family, directory, spec):
    """The training run of one head, with its batches."""
    seeds = [spec["seed"] + 100 + k for k in range(TRAINING["batches"])]
    batches = [inputs_of(spec, sample_batch(spec, seed), family.trained) for seed in seeds]
    steps, tensors, drift = train_twice(lambda: family.build(spec, family.trained), batches, family.is_norm,
                                        lambda model, batch: model(**batch).loss)
    save_file(tensors, directory / "training.safetensors")
    return steps, drift


def write_family(family, out):
    for name, spec in family.models.items():
        for head in spec["heads"]:
            directory = out / name / head
            directory.mkdir(parents=True, exist_ok=True)
            golden = write_head(family, directory, spec, head)
            print(f"{name}/{head}: loss {golden['loss'].item():.6f}, gradient norm {gradient_norm(golden):.4f}")
        steps, drift = write_training(family, out / name / family.trained, spec)
        print(f"{name}/{family.trained} training: loss {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}, "
              f"PyTorch's own 32-bit run strays {drift:.1e} of the first loss")


def main(family):
    """The command line of a family's script."""
    run(sys.modules["__main__"].__doc__, lambda out: write_family(family, out))
