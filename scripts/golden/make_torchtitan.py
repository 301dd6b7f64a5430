"""Golden data for checkpoints of torchtitan, saved by its own CheckpointManager on two ranks, on the CPU.

Writes crates/model-center/tests/golden/torchtitan; crates/model-center/tests/golden/README.md describes it. The data
are committed; run this only to change them, in an environment with torch 2.15.0, torchtitan 0.3.0, transformers 5.23.0
and safetensors 0.8.0:

    python scripts/golden/make_torchtitan.py            # writes the directory
    python scripts/golden/make_torchtitan.py --check    # loads every checkpoint with PyTorch and compares

Beside each checkpoint are the files of Hugging Face: the tensors are what torchtitan's own state-dict adapter makes of
the model, and transformers computes the logits of torchtitan's layers from them.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transformers
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.models import llama3, qwen3
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/torchtitan"
VERSIONS = {torch: "2.15.0", transformers: "5.23.0"}
RANKS = 2
VOCABULARY, DIM, FEED_FORWARD, HEADS, KV_HEADS, HEAD = 11, 16, 12, 4, 2, 8
# Names of the checkpoints: the family, whether the head is tied, and whether the whole training state is saved.
CASES = {"llama": ("llama", False, True), "llama_tied": ("llama", True, False), "qwen3": ("qwen3", True, False)}
# Names before torchtitan 0.3.0, and the rotary table that version 0.1.0 saved.
OLD_NAMES = [(".qkv_linear.", "."), ("lm_head.", "output.")]


def config(family, tied):
    """torchtitan's configuration of a model, and its adapter."""
    is_llama = family == "llama"
    rope = (ComplexRoPE if is_llama else CosSinRoPE).Config(dim=HEAD, max_seq_len=32, theta=10000.0)
    sizes = {"dim": DIM, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "hidden_dim": FEED_FORWARD, "rope": rope,
             "attn_backend": "flex"}
    module, name = (llama3, "Llama3") if is_llama else (qwen3, "Qwen3")
    if is_llama:
        # Heads of its Llama have the width of the model divided by their number.
        sizes["n_heads"], sizes["n_kv_heads"] = DIM // HEAD, 1
        layers = module._build_llama3_layers(n_layers=2, **sizes)
    else:
        layers = module._build_qwen3_layers(n_layers=1, head_dim=HEAD, **sizes)
    made = getattr(module, f"{name}Model").Config(
        dim=DIM, vocab_size=VOCABULARY, enable_weight_tying=tied, layers=layers,
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=DIM),
        norm=RMSNorm.Config(normalized_shape=DIM, eps=layers[0].ffn_norm.eps),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCABULARY),
    )
    return made, (Llama3StateDictAdapter if is_llama else Qwen3StateDictAdapter)(made, None)


def of_hugging_face(made, family, tied):
    """The configuration of transformers for the same model."""
    attention = made.layers[0].attention
    shared = {
        "vocab_size": VOCABULARY, "hidden_size": DIM, "intermediate_size": FEED_FORWARD, "head_dim": HEAD,
        "num_hidden_layers": len(made.layers), "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads, "max_position_embeddings": 32, "tie_word_embeddings": tied,
        "rms_norm_eps": made.layers[0].ffn_norm.eps or torch.finfo(torch.float32).eps, "rope_theta": 10000.0,
        "bos_token_id": 1, "eos_token_id": 2,
    }
    is_llama = family == "llama"
    found = (transformers.LlamaConfig if is_llama else transformers.Qwen3Config)(**shared)
    found.architectures = ["LlamaForCausalLM" if is_llama else "Qwen3ForCausalLM"]
    return found


class Held(Stateful):
    """What a trainer or a data loader has to save."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def run(rank, out, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for name, (family, tied, is_whole) in CASES.items():
        made, adapter = config(family, tied)
        model = made.build()
        torch.manual_seed(len(name))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape))
        state = {key: value.detach().clone() for key, value in model.state_dict().items()}
        fully_shard(model, mesh=mesh)
        groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-3})]
        optimizers = OptimizersContainer(
            OptimizersContainer.Config(param_groups=groups, implementation="for-loop"), model_parts=[model]
        )
        schedulers = LRSchedulersContainer.Config(warmup_steps=1).build(optimizers=optimizers, training_steps=2)
        # It saves into `checkpoint` of the working directory.
        (out / name).mkdir(exist_ok=True)
        os.chdir(out / name)
        manager = CheckpointManager(
            CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0, export_dtype="bfloat16"),
            dataloader=Held(**{f"dp_rank_{rank}": b"0", "world_size": RANKS}), model_parts=[model],
            optimizers=optimizers, lr_schedulers=schedulers, states={"train_state": Held(step=2, ntokens_seen=64)},
            sd_adapter=adapter,
        )
        manager.save(2, last_step=not is_whole)
        manager.close()
        if rank == 0:
            dtype = torch.float32 if is_whole else torch.bfloat16
            expected = adapter.to_hf({key: value.to(dtype) for key, value in state.items()})
            save_file({key: value.contiguous() for key, value in expected.items()}, out / f"{name}.safetensors")
            if name == "llama":
                save_old(state, out / "llama_old")
    dist.barrier()
    dist.destroy_process_group()


def save_old(state, out):
    """The same model under the names of earlier versions."""
    old = {"freqs_cis": torch.polar(torch.ones(32, HEAD // 2), torch.rand(32, HEAD // 2))}
    for key, value in state.items():
        for new, before in OLD_NAMES:
            key = key.replace(new, before)
        old[key] = value
    dcp.save({**old, "train_state": {"step": torch.tensor(2)}}, checkpoint_id=out, no_dist=True)


def logits(made, state):
    """What torchtitan's layers compute, with attention written out in place of its compiled kernel."""
    model = made.build()
    model.load_state_dict(state, strict=False)

    def attention(q, k, v, **_):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        product = torch.nn.functional.scaled_dot_product_attention
        return product(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    for layer in model.layers.values():
        layer.attention.inner_attention.forward = attention
    ids = torch.arange(8).remainder(VOCABULARY)[None]
    with torch.no_grad():
        return ids, model(ids, torch.arange(8)[None])


def check(out):
    for name, (family, tied, _) in CASES.items():
        made, adapter = config(family, tied)
        expected = load_file(out / name / "model/model.safetensors")
        state = {key: value.to(torch.float32) for key, value in made.build().state_dict().items()}
        held = {key: torch.zeros_like(value) for key, value in state.items()}
        dcp.load(held, checkpoint_id=out / name / "checkpoint/step-2", no_dist=True)
        found = adapter.to_hf(held)
        same = found.keys() == expected.keys()
        if not same or not all(torch.equal(found[key], expected[key].float()) for key in found):
            sys.exit(f"make_torchtitan.py: {name} differs from what torchtitan's adapter makes of it")
        model = transformers.AutoModelForCausalLM.from_pretrained(out / name / "model", dtype=torch.float32)
        ids, theirs = logits(made, held)
        with torch.no_grad():
            apart = (model(input_ids=ids).logits - theirs).abs().max().item()
        print(f"{name}: {len(found)} tensors, logits differ by {apart:.1e}")
        if apart > 1e-4:
            sys.exit(f"make_torchtitan.py: {name} computes other logits in transformers")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    for module, pinned in VERSIONS.items():
        if module.__version__.split("+")[0] != pinned:
            sys.exit(f"make_torchtitan.py: {module.__name__} is {module.__version__}, not {pinned}")
    if not arguments.check:
        shutil.rmtree(arguments.out, ignore_errors=True)
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(run, args=(Path(directory), 29571), nprocs=RANKS)
            shutil.copytree(directory, arguments.out)
        for name, (family, tied, _) in CASES.items():
            model = arguments.out / name / "model"
            model.mkdir()
            of_hugging_face(config(family, tied)[0], family, tied).save_pretrained(model)
            (arguments.out / f"{name}.safetensors").rename(model / "model.safetensors")
    check(arguments.out)


if __name__ == "__main__":
    main()
