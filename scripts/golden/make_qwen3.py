"""Golden data for Qwen 3: writes qwen3_a and qwen3_b. decoders.py describes them and how to run this script."""

from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from decoders import like_llama, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows in the first and the last layer; biases; heads that are not D / N long.
    "qwen3_a": {
        "seed": 89,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "attention_bias": True,
            "use_sliding_window": True, "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # No windows, no biases; positions stretched by YaRN with what it takes where a file is silent, in rows of twice as
    # many tokens as the file has positions.
    "qwen3_b": {
        "seed": 97,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 27, "intermediate_size": 38, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 8,
            "rms_norm_eps": 1e-3, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 15.0, "factor": 2.5,
                                "original_max_position_embeddings": 8},
        },
        "masks": ["#" * 16, "#" * 9 + "." * 7, "." * 7 + "#" * 9, "#" * 9 + ".." + "#" * 5, "." * 8 + "#" + "." * 7],
    },
}

if __name__ == "__main__":
    main(like_llama(Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification, MODELS))
