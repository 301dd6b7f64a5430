"""Golden data for GPT-2: writes gpt2_a and gpt2_b. decoders.py describes them and how to run this script."""

from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

from decoders import MIXED, RIGHT, Family, main, three_heads

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both. Heads have odd lengths.
MODELS = {
    "gpt2_a": {
        "seed": 37,
        "labels": 3,
        "config": {
            "vocab_size": 97, "n_embd": 20, "n_head": 4, "n_layer": 2, "n_positions": 19, "pad_token_id": 0,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        },
        "masks": RIGHT,
    },
    "gpt2_b": {
        "seed": 53,
        "labels": 1,
        "config": {
            "vocab_size": 61, "n_embd": 27, "n_head": 3, "n_inner": 50, "n_layer": 3, "n_positions": 13,
            "pad_token_id": 0, "activation_function": "gelu", "layer_norm_epsilon": 1e-3,
            "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True,
        },
        "masks": MIXED,
    },
}

FAMILY = Family(
    config=GPT2Config,
    off={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    heads=three_heads(GPT2LMHeadModel, GPT2ForSequenceClassification),
    models=MODELS,
    is_norm=lambda name: ".ln_" in name,
    fields={"bos_token_id": 1, "eos_token_id": 1},
)

if __name__ == "__main__":
    main(FAMILY)
