"""Golden data for GLM-4: writes glm4_a and glm4_b. decoders.py describes them and how to run this script."""

from transformers import Glm4Config, Glm4ForCausalLM, Glm4ForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Half of each head is rotated, as where a file is silent; biases of queries, keys and values.
    "glm4_a": {
        "seed": 257,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # No biases, as many key heads, another share of longer heads.
    "glm4_b": {
        "seed": 263,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 22, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-2, "pad_token_id": 0, "attention_bias": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0,
                                "partial_rotary_factor": 0.6},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(two_heads(Glm4Config, Glm4ForCausalLM, Glm4ForSequenceClassification, MODELS))
