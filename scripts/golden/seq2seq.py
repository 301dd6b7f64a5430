"""Golden data of models with an encoder and a decoder: tiny seeded ones of the transformers library, evaluated in
64-bit floats.

Imported by make_t5.py and its like, each for one family; crates/model-center/tests/golden/README.md describes
every file and tensor.

Weights are initialized in 32-bit floats, saved as they are, and widened for all arithmetic, so a reader of the 32-bit
file starts from exactly the numbers the goldens were computed with.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Callable

import torch
from safetensors.torch import save_file

from goldens import DEVIATION, TRAINING, check_saved, initialize_weights, gradient_norm, in_64_bits, run, train_twice

# What a model is given, and its padding: full rows, rows padded on the right and on the left, and for both stacks also
# a hole and one token in the middle. The lengths of the stacks differ.
LABELS_ALONE = ["input_ids", "attention_mask", "labels"]
FROM_LABELS = {
    "masks": ["###########", "#######....", "#..........", "...########"],
    "decoder_masks": ["#######", "#####..", "##.....", "######."],
    "inputs": LABELS_ALONE,
}
SPELLED_OUT = {
    "masks": ["########", "#####...", "...#####", "####..##", "....#..."],
    "decoder_masks": ["##########", "#######...", "..########", "####..####", "....#....."],
    "inputs": [*LABELS_ALONE, "decoder_input_ids", "decoder_attention_mask"],
}


@dataclass
class Family:
    """A family and its tiny models."""

    # What turns all dropout off.
    off: dict
    # By name: `kind` (the classes of the model and of its configuration), `seed`, `config`, `tied`, `masks` and
    # `decoder_masks` with a `#` for each token, `inputs` with the names of the tensors that the model is given;
    # `deviation` of the weights where it is another; `labels`, outputs of a classifier, if there is one: one output is
    # a number to predict.
    models: dict
    # Whether a parameter of this name is a norm's.
    is_norm: Callable[[str], bool]
    # The class for classes of a text, if there is one.
    classifier: type = None
    # Further fields of every configuration.
    fields: dict = field(default_factory=dict)

    def heads(self, spec):
        """The model with its language-modelling head, and with a classifier."""
        yield "lm", spec
        if "labels" in spec:
            config = spec["config"] | {"num_labels": spec["labels"]}
            yield "cls", spec | {"kind": (self.classifier, spec["kind"][1]), "config": config, "seed": spec["seed"] + 7}

    def build(self, spec):
        """A model with its 32-bit weights sampled, dropout off, attention spelled out."""
        kind, config = spec["kind"]
        model = kind(config(**self.fields, **spec["config"], **self.off, tie_word_embeddings=spec["tied"],
                            attn_implementation="eager"))
        if not spec["tied"] and hasattr(model, "lm_head"):
            # transformers ties every head when it is built, and leaves those alone that come from a file with a matrix.
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
            model.all_tied_weights_keys.pop("lm_head.weight", None)
        initialize_weights(model, spec["seed"], self.is_norm, spec.get("deviation", DEVIATION))
        initialize_logits_bias(model, spec["seed"])
        return model


def initialize_logits_bias(model, seed):
    """Fills the bias that some models store for their logits and never train."""
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(seed + 50)) * DEVIATION)


# What BART shares with those that are built like it.
LIKE_BART = {
    "off": {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0},
    "is_norm": lambda name: "layer_norm" in name or "layernorm" in name,
}


def mask_of(rows):
    return torch.tensor([[int(c == "#") for c in row] for row in rows], dtype=torch.int64)


def sample_texts(spec, seed):
    """One batch of a classifier, whose texts have equally many EOS tokens; some are masked."""
    mask, outputs = mask_of(spec["masks"]), spec["config"]["num_labels"]
    generator, last = torch.Generator().manual_seed(seed), spec["config"]["eos_token_id"]
    sampled = torch.randint(1, spec["config"]["vocab_size"], mask.shape, generator=generator, dtype=torch.int64)
    ids = torch.where(sampled == last, last + 1, sampled)
    places = torch.stack([torch.randperm(mask.shape[1], generator=generator)[:2] for _ in ids])  # [B, 2]
    ids = ids.scatter(1, places, last)
    count = (len(ids),)
    labels = torch.randn(count, generator=generator) if outputs == 1 else torch.randint(outputs, count,
                                                                                        generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def sample_batch(spec, seed):
    """One batch of inputs and labels."""
    if "num_labels" in spec["config"]:
        return sample_texts(spec, seed)
    vocabulary, generator = spec["config"]["vocab_size"], torch.Generator().manual_seed(seed)

    def ids(mask):
        sampled = torch.randint(1, vocabulary, mask.shape, generator=generator, dtype=torch.int64)
        return sampled * mask  # padding holds id 0

    mask, decoder_mask = mask_of(spec["masks"]), mask_of(spec["decoder_masks"])  # [B, S], [B, L]
    assert mask.shape[1] != decoder_mask.shape[1], "lengths that are equal tell nothing of a mix-up"
    source, read, words = ids(mask), ids(decoder_mask), ids(decoder_mask)
    # The padding id also appears once at a position that is attended to.
    source[0, 5] = 0
    # Not every token counts.
    counts = (decoder_mask == 1) & (torch.rand(decoder_mask.shape, generator=generator) < 0.8)  # [B, L]
    counts[0, 1] = True
    batch = {
        "input_ids": source, "attention_mask": mask, "decoder_input_ids": read, "decoder_attention_mask": decoder_mask,
        "labels": torch.where(counts, words, torch.tensor(-100)),
    }
    return {name: batch[name] for name in spec["inputs"]}


def loss_of(output, labels):
    """The loss in the type of the logits, held against transformers' own."""
    if labels.is_floating_point():
        loss = torch.nn.functional.mse_loss(output.logits.squeeze(1), labels.to(output.logits.dtype))
    else:
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, -2), labels.flatten())
    assert abs(loss.item() - output.loss.item()) <= 1e-6 * loss.item(), "this is not the loss of transformers"
    return loss


def evaluate(model, inputs):
    """Hidden states, logits, loss and all gradients of a 64-bit model."""
    output = model(**inputs, output_hidden_states=True, use_cache=False)
    loss = loss_of(output, inputs["labels"])
    loss.backward()
    encoder, decoder = output.encoder_hidden_states, output.decoder_hidden_states
    config = model.config
    decoder_layers = getattr(config, "decoder_layers", None) or config.num_decoder_layers
    assert len(encoder) == config.num_hidden_layers + 1 and len(decoder) == decoder_layers + 1
    assert torch.equal(encoder[-1], output.encoder_last_hidden_state), "the last states follow the final norm"
    # The decoder's tokens enter no block before the encoder has finished.
    golden = {f"hidden.{i}": hidden for i, hidden in enumerate([*encoder, *decoder[1:]])}  # [B, S, D], then [B, L, D]
    golden |= {"encoder_last_hidden_state": output.encoder_last_hidden_state, "logits": output.logits, "loss": loss}
    golden |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.requires_grad}
    return {name: tensor.detach().clone().contiguous() for name, tensor in golden.items()}


def write_model(family, directory, spec):
    """One Hugging Face directory with its inputs and goldens."""
    model = family.build(spec)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    # Published configurations of untied models are explicit; this version of transformers writes that all are tied.
    path = directory / "config.json"
    config = json.loads(path.read_text())
    if "tie_word_embeddings" in config:
        path.write_text(json.dumps(config | {"tie_word_embeddings": spec["tied"]}, indent=2) + "\n")
    model = model.double().eval()
    check_saved(directory, model)
    inputs = sample_batch(spec, spec["seed"] + 1)
    save_file(inputs, directory / "inputs.safetensors")
    with in_64_bits():
        golden = evaluate(model, inputs)
    save_file(golden, directory / "golden.safetensors")
    return golden


def write_family(family, out):
    for name, spec in family.models.items():
        for head, spec in family.heads(spec):
            write_head(family, out / name / head, spec)


def write_head(family, directory, spec):
    """One Hugging Face directory with everything in it."""
    title = f"{directory.parent.name}/{directory.name}"
    directory.mkdir(parents=True, exist_ok=True)
    golden = write_model(family, directory, spec)
    print(f"{title}: loss {golden['loss'].item():.6f}, gradient norm {gradient_norm(golden):.4f}")
    batches = [sample_batch(spec, spec["seed"] + 100 + k) for k in range(TRAINING["batches"])]
    steps, tensors, drift = train_twice(lambda: family.build(spec), batches, family.is_norm,
                                        lambda model, batch: loss_of(model(**batch), batch["labels"]))
    save_file(tensors, directory / "training.safetensors")
    print(f"{title} training: loss {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}, "
          f"PyTorch's own 32-bit run strays {drift:.1e} of the first loss")


def main(family):
    """The command line of a family's script."""
    run(sys.modules["__main__"].__doc__, lambda out: write_family(family, out))
