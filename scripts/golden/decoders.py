"""Golden data of decoders: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Imported by make_gpt2.py, make_llama.py and their like, each for one family; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; a family's script is run only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_llama.py            # writes the directories
    "$python" scripts/golden/make_llama.py --check    # recomputes them and compares with the committed files

Weights are initialized in 32-bit floats, saved as they are, and widened for all arithmetic, so a reader of the 32-bit
file starts from exactly the numbers the goldens were computed with.
"""

import sys
from dataclasses import dataclass, field, replace
from typing import Callable

import torch
from safetensors.torch import save_file

from goldens import DEVIATION, TRAINING, check_saved, initialize_weights, gradient_norm, in_64_bits, run, train_twice


# A full row, a row of one token, and lengths between, padded on the right.
RIGHT = ["###########", "#######....", "#..........", "#########.."]
# A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
MIXED = ["########", "#####...", "...#####", "####..##", "....#..."]


@dataclass
class Family:
    """A family and its tiny models."""

    # The class of its configuration, and what turns all dropout off.
    config: type
    off: dict
    # By directory: the class, and whether input embedding and output projection are tied.
    heads: dict
    # By name: `seed`, `labels` of the classifier, `config`, `masks` with a `#` for each token; `heads` where not all,
    # `deviation` of the weights and the head that is `trained` where these are others; `context` with a 1 for each
    # token of it and `span` with a digit for each token.
    models: dict
    # Whether a parameter of this name is a norm's.
    is_norm: Callable[[str], bool]
    # The mean of the weights of norms: 0 where they are differences from 1.
    norm_mean: float = 1.0
    # The head that is trained.
    trained: str = "lm"
    # Further fields of every configuration.
    fields: dict = field(default_factory=dict)
    # Names of parameters that have another in files.
    stored: dict = field(default_factory=dict)

    def heads_of(self, spec):
        return spec.get("heads", list(self.heads))

    def build(self, spec, head):
        """A model with its 32-bit weights sampled, dropout off, attention spelled out."""
        kind, tied = self.heads[head]
        classes = {"num_labels": spec["labels"]} if head == "cls" else {}
        config = self.config(**self.fields, **spec["config"], **classes, **self.off, tie_word_embeddings=tied,
                             attn_implementation="eager")
        model = kind(config)
        initialize_weights(model, spec["seed"], self.is_norm, spec.get("deviation", DEVIATION),
                           self.norm_mean)
        return model


def three_heads(lm, classifier, classifier_is_tied=True):
    """A language-modelling class with tied and untied embeddings, and a sequence classifier."""
    return {"lm": (lm, True), "untied": (lm, False), "cls": (classifier, classifier_is_tied)}


def like_llama(config, words, classifier, models, norm_mean=1.0):
    """A family whose configuration has the fields of Llama's."""
    return Family(config=config, off={"attention_dropout": 0.0}, heads=three_heads(words, classifier, False),
                  models=models, norm_mean=norm_mean,
                  is_norm=lambda name: "norm" in name, fields={"bos_token_id": 1, "eos_token_id": 2})


def two_heads(config, words, classifier, models):
    """The same with tied embeddings alone."""
    family = like_llama(config, words, classifier, models)
    return replace(family, heads={head: kind for head, kind in family.heads.items() if head != "untied"})


def digits(rows):
    """A table of numbers below ten; other characters are 0."""
    return torch.tensor([[int(c) if c.isdigit() else 0 for c in row] for row in rows], dtype=torch.int64)


def sample_batch(spec, seed):
    """One batch of inputs and the labels of every head."""
    vocabulary, generator = spec["config"]["vocab_size"], torch.Generator().manual_seed(seed)

    def integers(low, high, shape):
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64)

    mask = torch.tensor([[int(c == "#") for c in row] for row in spec["masks"]], dtype=torch.int64)  # [B, L]
    ids = integers(1, vocabulary, mask.shape) * mask  # [B, L], padding holds id 0
    # The padding id also appears once at a position that is attended to.
    ids[0, 5] = 0
    # A label counts only where a token follows a token, and not at every such position.
    follows = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)  # [B, L]
    counts = (mask * follows == 1) & (torch.rand(mask.shape, generator=generator) < 0.8)  # [B, L]
    counts[0, 1] = True
    labels = spec["labels"]
    values = torch.randn(mask.shape[0], generator=generator, dtype=torch.float32)  # [B]
    return {
        "input_ids": ids, "attention_mask": mask,
        "tokens": torch.where(counts, ids, torch.tensor(-100)),  # [B, L]
        "cls": values if labels == 1 else integers(0, labels, mask.shape[:1]),  # [B]
    } | {name: digits(spec[name]) for name in ("context", "span") if name in spec}  # [B, L] each


def inputs_of(batch, head):
    """The tensors one head takes, under the names its `forward` gives them."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("tokens", "cls")}
    return inputs | {"labels": batch["cls" if head == "cls" else "tokens"]}


def widened(inputs):
    """The inputs for a 64-bit model: labels that are numbers in its type."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}


def loss_of(output, labels):
    """The loss in the dtype of the logits. transformers computes the next-token loss in 32-bit floats whatever their
    dtype."""
    if labels.shape != output.logits.shape[:2]:
        return output.loss
    logits = output.logits[:, :-1]  # [B, L - 1, V]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
    assert abs(loss.item() - output.loss.item()) <= 1e-6 * loss.item(), "this is not the loss of transformers"
    return loss


def evaluate(model, inputs, stored):
    """Hidden states, logits, loss and all gradients of a 64-bit model, these under the names of parameters in files."""
    inputs = widened(inputs)
    output = model(**inputs, output_hidden_states=True)
    loss = loss_of(output, inputs["labels"])
    loss.backward()
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    golden = {f"hidden.{i}": hidden for i, hidden in enumerate(output.hidden_states)}  # each [B, L, D]
    golden |= {"logits": output.logits, "loss": loss}
    golden |= {f"grad.{stored.get(name, name)}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in golden.items()}


def write_head(family, directory, spec, head):
    """One Hugging Face directory with its inputs and goldens."""
    model = family.build(spec, head)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    model = model.double().eval()
    check_saved(directory, model, family.stored)
    inputs = inputs_of(sample_batch(spec, spec["seed"] + 1), head)
    save_file(inputs, directory / "inputs.safetensors")
    with in_64_bits():
        golden = evaluate(model, inputs, family.stored)
    save_file(golden, directory / "golden.safetensors")
    return golden


def write_family(family, out):
    for name, spec in family.models.items():
        for head in family.heads_of(spec):
            directory = out / name / head
            directory.mkdir(parents=True, exist_ok=True)
            golden = write_head(family, directory, spec, head)
            print(f"{name}/{head}: loss {golden['loss'].item():.6f}, gradient norm {gradient_norm(golden):.4f}")
        head = spec.get("trained", family.trained)
        batches = [inputs_of(sample_batch(spec, spec["seed"] + 100 + k), head) for k in range(TRAINING["batches"])]
        steps, tensors, drift = train_twice(lambda: family.build(spec, head), batches, family.is_norm,
                                            lambda model, batch: loss_of(model(**batch), batch["labels"]))
        save_file(tensors, out / name / head / "training.safetensors")
        print(f"{name}/{head} training: loss {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}, "
              f"PyTorch's own 32-bit run strays {drift:.1e} of the first loss")


def main(family):
    """The command line of a family's script."""
    run(sys.modules["__main__"].__doc__, lambda out: write_family(family, out))
