"""Golden data for sentence encoders: writes `sentence_encoders`, a tiny BERT with a tokenizer, the directories that
sentence-transformers saves for several modules and settings, and the embeddings that it computes of them.

crates/model-center/tests/golden/README.md describes every file. The data are committed; run this only to change them,
in the environment of scripts/python_env.sh with two more packages beside it:

    python="$(scripts/python_env.sh)"
    python3 -m pip --python "$python" install --target "$TMPDIR/packages" --no-deps \\
        sentence-transformers==6.2.0 scikit-learn==1.9.1 scipy==1.17.1 joblib threadpoolctl narwhals
    PYTHONPATH="$TMPDIR/packages" "$python" scripts/golden/make_sentence_encoders.py            # or with --check
"""

import json
import shutil
import tempfile
from pathlib import Path

import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from goldens import initialize_weights, run

assert sentence_transformers.__version__ == "6.2.0"

WORDS = "the film was good bad fine and query document : . g ##ood f ##ilm G F ##i T ##he".split()
HIDDEN, POSITIONS = 8, 24
TEXTS = ["the film was good", "bad", "The Film Was Good .", "fine and good and the film was bad . " * 5]


def is_norm(name):
    return "LayerNorm" in name


def write_base(out):
    """The transformer and its tokenizer, which keeps the case of letters."""
    vocabulary = {token: at for at, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    config = BertConfig(vocab_size=len(vocabulary), hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=12, max_position_embeddings=POSITIONS, attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False).eval()
    initialize_weights(model, 911, is_norm, deviation=0.4)
    model.save_pretrained(out)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]")
    fast.save_pretrained(out)


def dense(inputs, outputs, seed, **more):
    module = Dense(inputs, outputs, **more)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return module


def cases():
    """By name: what follows the transformer, and the settings of the whole."""
    pooling = lambda *modes: Pooling(HIDDEN, pooling_mode=list(modes))
    prompts = {"query": "query : ", "document": "document : "}
    return {
        "mean": ([pooling("mean"), Normalize()], {}),
        "first": ([pooling("cls")], {}),
        "short": ([pooling("mean"), Normalize()], {"max_seq_length": 7}),
        "several": ([pooling("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")], {}),
        "dense": ([pooling("mean"), Dropout(0.5), dense(HIDDEN, 5, 3), dense(5, 4, 4, bias=False,
                   activation_function=torch.nn.Identity()), Normalize()], {}),
        "activations": ([pooling("mean"), dense(HIDDEN, 6, 5, activation_function=torch.nn.ReLU()),
                         dense(6, 6, 6, activation_function=torch.nn.SiLU()),
                         dense(6, 3, 7, activation_function=torch.nn.Sigmoid())], {}),
        "prompt": ([pooling("mean"), Normalize()], {"prompts": prompts, "default_prompt_name": "query"}),
    }


def write_case(base, out, modules, settings):
    settings = dict(settings)
    length = settings.pop("max_seq_length", None)
    model = SentenceTransformer(modules=[Transformer(str(base)), *modules], device="cpu", **settings)
    if length is not None:
        model.max_seq_length = length
    with tempfile.TemporaryDirectory() as saved:
        model.save(saved, create_model_card=False)
        shutil.copytree(saved, out, dirs_exist_ok=True)
    finish_case(base, out)


def write_older_case(base, out):
    """As versions before 5 wrote it: a flag for each pooling, the length and the case of letters in a file."""
    write_case(base, out, [Pooling(HIDDEN), Normalize()], {})
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
               "pooling_mode_max_tokens": True, "pooling_mode_mean_sqrt_len_tokens": False}
    (out / "1_Pooling/config.json").write_text(json.dumps(pooling, indent=2) + "\n")
    (out / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": True}) + "\n")
    old = "sentence_transformers.models."
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": at, "name": str(at), "path": path, "type": old + name} for at, (path, name) in enumerate(steps)]
    (out / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (out / "config_sentence_transformers.json").write_text(json.dumps({"__version__": {"pytorch": "1.9.0"}}) + "\n")
    finish_case(base, out)


def finish_case(base, out):
    """Keeps what differs from the base, and adds the embeddings."""
    for name in ["config.json", "model.safetensors", "tokenizer.json"]:
        if (out / name).exists():
            (out / name).unlink()
    with tempfile.TemporaryDirectory() as whole:
        shutil.copytree(base, whole, dirs_exist_ok=True)
        shutil.copytree(out, whole, dirs_exist_ok=True)
        model = SentenceTransformer(whole, device="cpu")
        found = {"texts": TEXTS, "embeddings": model.encode(TEXTS).tolist()}
        found["ids"] = [model.preprocess([text], prompt=model._resolve_prompt(None, None))["input_ids"][0].tolist()
                        for text in TEXTS]
        for name, prompt in model.prompts.items():
            if prompt:
                found[f"embeddings of {name}"] = model.encode(TEXTS, prompt_name=name).tolist()
    (out / "expected.json").write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")


def write_all(out):
    out = out / "sentence_encoders"
    base = out / "base"
    write_base(base)
    for name, (modules, settings) in cases().items():
        write_case(base, out / name, modules, settings)
    write_older_case(base, out / "older")
    # Without names of machines or versions that change nothing.
    for file in out.rglob("config_sentence_transformers.json"):
        settings = json.loads(file.read_text())
        settings["__version__"] = {"sentence_transformers": sentence_transformers.__version__}
        file.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    run(__doc__, write_all)
