"""Golden data for OPT: writes opt_a, opt_b and opt_c. decoders.py describes them and how to run this script."""

from transformers import OPTConfig, OPTForCausalLM, OPTForSequenceClassification

from decoders import MIXED, RIGHT, Family, main, three_heads

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    "opt_a": {
        "seed": 71,
        "labels": 3,
        "config": {
            "vocab_size": 59, "hidden_size": 20, "num_attention_heads": 4, "ffn_dim": 33, "num_hidden_layers": 2,
            "max_position_embeddings": 19, "pad_token_id": 0,
        },
        "masks": RIGHT,
    },
    # As the model of 350 million parameters: post-norm, no final norm, an embedding size of its own.
    "opt_b": {
        "seed": 73,
        "labels": 1,
        "config": {
            "vocab_size": 43, "hidden_size": 24, "num_attention_heads": 3, "ffn_dim": 18, "num_hidden_layers": 3,
            "max_position_embeddings": 13, "pad_token_id": 0, "activation_function": "gelu",
            "do_layer_norm_before": False, "word_embed_proj_dim": 14,
        },
        "masks": MIXED,
    },
    # Pre-norm without a final norm; embeddings larger than the hidden states; no biases.
    "opt_c": {
        "seed": 79,
        "labels": 2,
        "heads": ["lm"],
        "config": {
            "vocab_size": 37, "hidden_size": 10, "num_attention_heads": 2, "ffn_dim": 22, "num_hidden_layers": 1,
            "max_position_embeddings": 9, "pad_token_id": 0, "enable_bias": False, "_remove_final_layer_norm": True,
            "word_embed_proj_dim": 15,
        },
        "masks": ["#######", "..#####", "##.#.#."],
    },
}

FAMILY = Family(
    config=OPTConfig,
    off={"dropout": 0.0, "attention_dropout": 0.0},
    heads=three_heads(OPTForCausalLM, OPTForSequenceClassification),
    models=MODELS,
    is_norm=lambda name: "layer_norm" in name,
    fields={"bos_token_id": 2, "eos_token_id": 2},
)

if __name__ == "__main__":
    main(FAMILY)
