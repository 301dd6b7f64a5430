"""Golden data for GPT-J: writes gptj_a and gptj_b. decoders.py describes them and how to run this script."""

import torch
from transformers import GPTJConfig, GPTJForCausalLM, GPTJForSequenceClassification

from decoders import MIXED, RIGHT, Family, main

HEADS = {
    "lm": (GPTJForCausalLM, False),
    "cls": (GPTJForSequenceClassification, False),
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both. Heads have odd lengths.
MODELS = {
    "gptj_a": {
        "seed": 83,
        "labels": 3,
        "config": {
            "vocab_size": 59, "n_embd": 20, "n_head": 4, "n_layer": 2, "n_positions": 19, "rotary_dim": 4,
            "pad_token_id": 0, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        },
        "masks": RIGHT,
    },
    "gptj_b": {
        "seed": 89,
        "labels": 1,
        "config": {
            "vocab_size": 43, "n_embd": 18, "n_head": 2, "n_inner": 40, "n_layer": 3, "n_positions": 13,
            "rotary_dim": 6, "pad_token_id": 0, "activation_function": "gelu", "layer_norm_epsilon": 1e-3,
        },
        "masks": MIXED,
    },
}


class WideAngles(Family):
    """transformers rounds the angles to 32-bit floats before it takes their sines, whatever the type of the model."""

    def build(self, spec, head):
        model = super().build(spec, head)
        config = model.config
        pairs = torch.arange(0, config.rotary_dim, 2, dtype=torch.float64)
        places = torch.arange(config.n_positions, dtype=torch.float64)
        angles = places[:, None] * 10000.0 ** (-pairs / config.rotary_dim)  # [P, R / 2]
        for block in model.transformer.h:
            table = torch.cat([angles.sin(), angles.cos()], dim=1)  # [P, R]
            assert torch.allclose(block.attn.embed_positions.double(), table, rtol=0, atol=1e-5)
            block.attn.embed_positions = table
        return model


FAMILY = WideAngles(
    config=GPTJConfig,
    off={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    heads=HEADS,
    models=MODELS,
    is_norm=lambda name: ".ln_" in name,
    fields={"bos_token_id": 1, "eos_token_id": 1},
)

if __name__ == "__main__":
    main(FAMILY)
