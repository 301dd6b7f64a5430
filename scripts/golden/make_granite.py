"""Golden data for Granite: writes granite_a and granite_b. decoders.py describes them and how to run this script."""

from transformers import GraniteConfig, GraniteForCausalLM

from decoders import Family, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # A factor for each of the four, none of them a power of two; heads that are not D / N long.
    "granite_a": {
        "seed": 211,
        "labels": 1,
        "config": {
            "vocab_size": 47, "hidden_size": 22, "intermediate_size": 27, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
            "embedding_multiplier": 3.5, "attention_multiplier": 0.3, "residual_multiplier": 0.45,
            "logits_scaling": 0.7,
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Biases everywhere; the factors of embeddings, logits and what is added left out, so that they are 1, and the
    # scores' too small to be one over a root.
    "granite_b": {
        "seed": 223,
        "labels": 1,
        "config": {
            "vocab_size": 35, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
            "attention_multiplier": 0.11,
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(Family(
        config=GraniteConfig, off={"attention_dropout": 0.0},
        heads={"lm": (GraniteForCausalLM, True), "untied": (GraniteForCausalLM, False)}, models=MODELS,
        is_norm=lambda name: "norm" in name, fields={"bos_token_id": 1, "eos_token_id": 2}))
