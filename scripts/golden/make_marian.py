"""Golden data for Marian: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/marian_a and marian_b; crates/model-center/tests/golden/README.md describes
every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_marian.py            # writes the directories
    "$python" scripts/golden/make_marian.py --check    # recomputes them and compares with the committed files
"""

from transformers import MarianConfig, MarianMTModel

from seq2seq import FROM_LABELS, LIKE_BART, SPELLED_OUT, Family, main

KIND = (MarianMTModel, MarianConfig)

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # Scaled embeddings as in all published models, and a row of odd length, which has one sine more than cosines;
    # decoder inputs that are made from the labels.
    "marian_a": {
        "kind": KIND,
        "seed": 97,
        "tied": True,
        "config": {
            "vocab_size": 43, "d_model": 15, "max_position_embeddings": 19, "encoder_layers": 1, "decoder_layers": 2,
            "encoder_attention_heads": 5, "decoder_attention_heads": 3, "encoder_ffn_dim": 26, "decoder_ffn_dim": 21,
            "activation_function": "silu", "scale_embedding": True, "pad_token_id": 42, "decoder_start_token_id": 42,
        },
        **FROM_LABELS,
    },
    # Decoder inputs and their padding are given, and are as long as can be.
    "marian_b": {
        "kind": KIND,
        "seed": 101,
        "tied": True,
        "config": {
            "vocab_size": 37, "d_model": 22, "max_position_embeddings": 10, "encoder_layers": 2, "decoder_layers": 1,
            "encoder_attention_heads": 2, "decoder_attention_heads": 11, "encoder_ffn_dim": 19, "decoder_ffn_dim": 33,
            "pad_token_id": 36, "decoder_start_token_id": 5,
        },
        **SPELLED_OUT,
    },
}

FAMILY = Family(models=MODELS, **LIKE_BART)

if __name__ == "__main__":
    main(FAMILY)
