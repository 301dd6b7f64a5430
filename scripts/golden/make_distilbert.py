"""Golden data for DistilBERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/distilbert_a and distilbert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_distilbert.py            # writes the directories
    "$python" scripts/golden/make_distilbert.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

HEADS = {
    "cls": transformers.DistilBertForSequenceClassification,
    "mlm": transformers.DistilBertForMaskedLM,
    "tokens": transformers.DistilBertForTokenClassification,
    "qa": transformers.DistilBertForQuestionAnswering,
}
OFF = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "qa_dropout": 0.0}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    "distilbert_a": {
        "seed": 411,
        "labels": 2,
        "config": {
            "vocab_size": 41, "dim": 12, "n_heads": 4, "hidden_dim": 22, "n_layers": 2,
            "max_position_embeddings": 17, "activation": "gelu",
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["############", "#######.....", "#...........", "#########..."],
    },
    "distilbert_b": {
        "seed": 423,
        "labels": 5,
        # With sines and cosines the position embedding only begins as them: a file has its values, and they are
        # trained. The masked-token head has the activation of the blocks.
        "config": {
            "vocab_size": 29, "dim": 9, "n_heads": 3, "hidden_dim": 14, "n_layers": 3,
            "max_position_embeddings": 13, "activation": "relu", "sinusoidal_pos_embds": True, "pad_token_id": 7,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
    },
}

if __name__ == "__main__":
    kind = transformers.DistilBertConfig
    main(Family(models={name: spec | {"kind": kind, "heads": HEADS} for name, spec in MODELS.items()}, off=OFF))
