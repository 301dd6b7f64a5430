"""Golden data for Llama: writes llama_a and llama_b. decoders.py describes them and how to run this script."""

from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from decoders import MIXED, RIGHT, like_llama, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Llama 3: key heads shared by two query heads, stretched positions, heads that are not D / N long.
    "llama_a": {
        "seed": 61,
        "labels": 3,
        "config": {
            "vocab_size": 59, "hidden_size": 20, "intermediate_size": 33, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
        },
        "masks": RIGHT,
    },
    # Llama 1: as many key heads, plain positions; with the biases that some derived models have.
    "llama_b": {
        "seed": 67,
        "labels": 1,
        "config": {
            "vocab_size": 43, "hidden_size": 24, "intermediate_size": 18, "num_hidden_layers": 3,
            "num_attention_heads": 3, "max_position_embeddings": 13, "rms_norm_eps": 1e-3, "pad_token_id": 0,
            "attention_bias": True, "mlp_bias": True,
        },
        "masks": MIXED,
    },
}

if __name__ == "__main__":
    main(like_llama(LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, MODELS))
