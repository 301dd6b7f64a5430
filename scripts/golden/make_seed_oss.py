"""Golden data for Seed-OSS: writes seed_oss_a and seed_oss_b. decoders.py describes them and how to run this."""

from dataclasses import replace

from transformers import SeedOssConfig, SeedOssForCausalLM, SeedOssForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Biases of queries, keys and values, as where a file is silent; heads that are not D / N long.
    "seed_oss_a": {
        "seed": 313,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Biases everywhere but there; as many key heads; stretched angles.
    "seed_oss_b": {
        "seed": 317,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "attention_bias": False, "attention_out_bias": True,
            "mlp_bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    family = two_heads(SeedOssConfig, SeedOssForCausalLM, SeedOssForSequenceClassification, MODELS)
    main(replace(family, off={"attention_dropout": 0.0, "residual_dropout": 0.0}))
