"""Prints how many families of models are named in their own file only, as OK/TOTAL and a verdict. What else names a
family goes to stderr. Usage: one_file_family.py ROOT

Looked at is code, without comments and unit tests, for a family's name and its type of configuration as whole words,
whatever their case. The registry lists the families and may name all of them.
"""

import re
import sys
from pathlib import Path

SOURCES = [
    *(f"crates/bmtrain-{name}/src" for name in ("core", "corpus", "dist", "programs")),
    *(f"crates/model-center-{name}/src" for name in ("base", "data", "formats", "import", "models", "recipe", "train")),
    "crates/model-center/src",
    "examples/src",
]
REGISTRY = ["crates/model-center-models/src/model/mod.rs", "crates/model-center-models/src/model/family/mod.rs"]

# Files that name families, and why. A path that ends in / stands for a directory.
EXCEPTIONS = {
    "crates/model-center-formats/src/formats/pretrained/aliases.rs": "identifiers of published models",
    "crates/model-center-formats/src/formats/gguf/": "architectures and vocabularies as GGUF names them",
    "crates/model-center-formats/src/tokenizer/": "tokenizers of transformers, by model_type for unknown families too",
    "crates/model-center-data/src/data/answers.rs": "an error that lists the models with what is asked for",
    "crates/model-center-models/src/model/text_model.rs": "the same",
    "crates/model-center-recipe/src/recipe/keys/": "examples of values of recipe keys, and names of other trainers",
    "crates/model-center-import/src/import/megatron/": "programs of Megatron-LM, and the model that each trains",
    "crates/model-center-import/src/import/model_center.rs": "programs of ModelCenter, by the model that each trains",
    "crates/model-center-import/src/import/yaml/axolotl_forms.rs": "chat templates by axolotl's names",
    "crates/model-center-import/src/import/sheet.rs": "a hint with a path as an example",
    "crates/model-center-import/src/starter/presets.rs": "identifiers of published models",
    "crates/model-center-formats/src/formats/ranked/": "checkpoints of Megatron-LM, which trains two kinds of models",
    "crates/model-center-formats/src/formats/known_directory.rs": "whose files a directory has",
    "crates/model-center-formats/src/directory/gguf.rs": "a window that GGUF files of one model do not declare",
    "crates/model-center-data/src/pretraining/": "objectives, named after the models that introduced them",
    "crates/model-center-data/src/corpus/maps/groups.rs": "records of the corpora of BERT's authors",
    "crates/model-center-recipe/src/recipe/pretraining_objective.rs": "presets of objectives, named after models",
    "crates/model-center-train/src/train/pretraining_data.rs": "the same presets",
    "crates/model-center-train/src/formula/sizes.rs": "the shape by which Megatron-LM counts parameters",
    "crates/bmtrain-programs/src/cluster/scenario.rs": "the same shape, of a scenario without a configuration",
    "crates/bmtrain-programs/src/corpus/clean.rs": "a hint with a tokenizer as an example",
    "crates/bmtrain-corpus/src/formats/": "formats of corpora, named after the models that they were made for",
}
# Families built from another one's parts: (file of the user, family whose parts it takes).
SHARED = {
    ("mistral", "llama"): "a Llama with a window",
    ("qwen2", "llama"): "a Llama with biases",
    ("qwen3", "llama"): "a Llama with norms of heads",
    ("qwen3", "qwen2"): "defaults of Qwen 2",
    ("gemma2", "llama"): "a Llama with norms before and after each layer, and soft caps",
    ("gemma3", "gemma2"): "a Gemma 2 with norms of heads",
    ("gemma3", "llama"): "names of a Llama",
    ("granite", "llama"): "a Llama with factors",
    ("ministral", "llama"): "a Llama with windows in some layers",
    ("ministral", "mistral"): "defaults of Mistral",
    ("cwm", "llama"): "a Llama with windows in some layers",
    ("seed_oss", "llama"): "a Llama with biases",
    ("seed_oss", "qwen2"): "the same names of tensors",
    ("olmo2", "llama"): "a Llama with norms after the layers",
    ("smollm3", "llama"): "a Llama without positions in some layers",
    ("phi3", "llama"): "a Llama with fused projections in files",
    ("glm4", "llama"): "a Llama with norms before and after each layer",
    ("olmo3", "llama"): "positions of a Llama",
    ("olmo3", "olmo2"): "the same blocks with windows",
    ("gptj", "gpt2"): "the same names of fields",
    ("marian", "bart"): "a BART with computed positions",
    ("cpm2", "cpm1"): "the same blocks as an encoder-decoder",
    ("bert", "roberta"): "told apart by the prefix of tensor names",
    ("roberta", "bert"): "told apart by the prefix of tensor names",
    ("megatron_bert", "bert"): "a BERT with its norms before the layers",
    ("electra", "bert"): "told apart by the prefix of tensor names",
    ("electra", "roberta"): "told apart by the prefix of tensor names",
    ("megatron_bert", "roberta"): "told apart by the prefix of tensor names",
    ("cpm_t5", "t5"): "the T5 of CPM-Pretrain, in a line for listings",
    ("t5", "mt5"): "one computation under two names",
    ("roberta", "xlm-roberta"): "one computation under three names",
    ("roberta", "camembert"): "one computation under three names",
}


def code(path):
    """The file's code: no comments, no unit tests."""
    text = path.read_text().split("#[cfg(test)]\nmod tests")[0]
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("//"))
    return [re.sub(r"\s//\s.*", "", line) for line in lines]


def main():
    root = Path(sys.argv[1])
    paths = [path for source in SOURCES for path in sorted((root / source).rglob("*.rs"))]
    files = {str(path.relative_to(root)): code(path) for path in paths if path.name != "tests.rs"}
    own = {}
    for name, lines in files.items():
        if name.startswith("crates/model-center-models/src/model/"):
            for family in re.findall(r'ModelEntry\s*\{\s*model_type:\s*"([^"]+)"', "\n".join(lines)):
                own[family] = name
    ok = 0
    for family, home in sorted(own.items()):
        stem = family.replace("-", "[-_]?")
        pattern = re.compile(rf"(?<![\w-]){stem}(config)?(?![\w-])", re.IGNORECASE)
        found = []
        for name, lines in files.items():
            excused = any(name == e or (e.endswith("/") and name.startswith(e)) for e in EXCEPTIONS)
            if name == home or name in REGISTRY or excused or (Path(name).stem, family) in SHARED:
                continue
            found += [f"{name}: {line.strip()}" for line in lines if pattern.search(line)]
        for line in found:
            print(f"{family}: {line}", file=sys.stderr)
        ok += not found
    total = len(own)
    print(f"{ok}/{total}", "ok" if ok == total and total > 0 else "short")


main()
