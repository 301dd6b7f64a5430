"""Golden data for Phi-3: writes phi3_a and phi3_b. decoders.py describes them and how to run this script."""

from transformers import Phi3Config, Phi3ForCausalLM, Phi3ForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # LongRoPE of a part of each head in rows longer than the first training: the divisors of long texts; a window.
    "phi3_a": {
        "seed": 241,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 24, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 40,
            "original_max_position_embeddings": 9, "rms_norm_eps": 1e-5, "pad_token_id": 0, "sliding_window": 5,
            "partial_rotary_factor": 0.8,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 20.0, "short_factor": [1.0, 1.25, 1.5],
                                "long_factor": [1.125, 2.5, 4.0]},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Rows as long as the first training: the divisors of short texts, with the factor of angles stated; whole heads.
    "phi3_b": {
        "seed": 251,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 20, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 5, "num_key_value_heads": 5, "max_position_embeddings": 26,
            "original_max_position_embeddings": 13, "rms_norm_eps": 1e-3, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, "short_factor": [1.0, 3.0],
                                "long_factor": [2.0, 5.0], "attention_factor": 1.125},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(two_heads(Phi3Config, Phi3ForCausalLM, Phi3ForSequenceClassification, MODELS))
