"""Golden data for ELECTRA: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/electra_a and electra_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_electra.py            # writes the directories
    "$python" scripts/golden/make_electra.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

HEADS = {
    "cls": transformers.ElectraForSequenceClassification,
    "mlm": transformers.ElectraForMaskedLM,
    "tokens": transformers.ElectraForTokenClassification,
    "qa": transformers.ElectraForQuestionAnswering,
}
# Opened without its head, which is not written back: deeper than the directories that are compared as a whole.
DISCRIMINATOR = {"discriminator/replaced": transformers.ElectraForPreTraining}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Embeddings narrower than the blocks.
    "electra_a": {
        "seed": 511,
        "labels": 2,
        "heads": HEADS | DISCRIMINATOR,
        "config": {
            "vocab_size": 37, "embedding_size": 7, "hidden_size": 12, "num_attention_heads": 4,
            "intermediate_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 17, "type_vocab_size": 2,
            "hidden_act": "relu", "layer_norm_eps": 1e-5, "pad_token_id": 3,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["############", "#######.....", "#...........", "#########..."],
    },
    # Embeddings as wide as the blocks, without a projection.
    "electra_b": {
        "seed": 523,
        "labels": 5,
        "heads": HEADS,
        "config": {
            "vocab_size": 29, "embedding_size": 9, "hidden_size": 9, "num_attention_heads": 3,
            "intermediate_size": 14, "num_hidden_layers": 3, "max_position_embeddings": 13, "type_vocab_size": 3,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-12,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
    },
}

if __name__ == "__main__":
    main(Family(models={name: spec | {"kind": transformers.ElectraConfig} for name, spec in MODELS.items()}))
