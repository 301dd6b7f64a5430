"""What other programs save, and whether it is read as they read it. Called by scripts/claims/others.sh.

    others.py fsdp DIRECTORY              a Llama that FSDP2 trains on two CPU ranks, saved and resharded
    others.py tensors EXPECTED DIRECTORY  compares a directory's model with expected tensors, bit for bit
    others.py write-rows DIRECTORY ROWS   random rows in every form, and as Python has them
    others.py rows EXPECTED               compares JSON lines on standard input with expected ones

Comparisons print a line: the kind, how many differ, and how many there are.
"""

import json
import os
import random
import sys
from pathlib import Path


def join(rank, ranks, port):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def sharded(out, ranks):
    """The model and an optimizer after FSDP2 divided the model."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(out / "model", dtype=torch.float32)
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(rank, out):
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict

    join(rank, 2, 29561)
    model, optimizer = sharded(out, 2)
    for step in range(2):
        ids = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(10 * step + rank))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": state, "optim": moments}, "step": torch.tensor(2)}, checkpoint_id=out / "two")
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(out / "hugging_face", save_distributed=True))
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in whole.items()}, out / "expected.safetensors")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def reshard(rank, out):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    join(rank, 4, 29562)
    state = get_model_state_dict(sharded(out, 4)[0])
    dcp.load({"app": {"model": state}}, checkpoint_id=out / "two")
    dcp.save({"model": state}, checkpoint_id=out / "four")
    torch.distributed.destroy_process_group()


def fsdp(out):
    import torch.multiprocessing as mp
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=301, hidden_size=96, intermediate_size=200, num_hidden_layers=4,
                         num_attention_heads=6, num_key_value_heads=3, max_position_embeddings=64)
    LlamaForCausalLM(config).save_pretrained(out / "model")
    mp.spawn(train, args=(out,), nprocs=2)
    mp.spawn(reshard, args=(out,), nprocs=4)


def tensors(expected, directory):
    import torch
    from safetensors.torch import load_file

    ours, theirs = load_file(directory / "model.safetensors"), load_file(expected)
    names = ours.keys() | theirs.keys()
    differ = [n for n in names if n not in ours or n not in theirs or not torch.equal(ours[n], theirs[n])]
    print("tensors", len(differ), len(names))


def text(generator):
    return "".join(generator.choice("abc \n\"\u00e9\u4e2d\U0001f600") for _ in range(generator.randrange(60)))


def row(generator):
    maybe = lambda value: value if generator.random() > 0.1 else None
    message = lambda: maybe({"role": generator.choice(["user", "assistant"]), "content": maybe(text(generator))})
    several = lambda one: maybe([one() for _ in range(generator.randrange(5))])
    return {
        "text": "x" + text(generator), "messages": several(message), "tags": several(lambda: maybe(text(generator))),
        "deep": several(lambda: several(lambda: maybe(generator.randrange(-9, 9)))),
        "flag": maybe(generator.random() < 0.5),
        "whole": maybe(generator.randrange(-(2**63), 2**63)), "small": maybe(generator.randrange(-128, 128)),
        "exact": maybe(generator.uniform(-1e9, 1e9)), "class": maybe(generator.choice(["yes", "no", "perhaps"])),
    }


def write_rows(out, count):
    import datasets
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    out.mkdir(parents=True)
    generator = random.Random(5)
    rows = [row(generator) for _ in range(count)]
    (out / "expected.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    message = pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string())]))
    schema = pa.schema([
        ("text", pa.string()), ("messages", message), ("tags", pa.list_(pa.string())),
        ("deep", pa.list_(pa.list_(pa.int16()))), ("flag", pa.bool_()), ("whole", pa.int64()), ("small", pa.int8()),
        ("exact", pa.float64()), ("class", pa.string()),
    ])
    table = pa.Table.from_pylist(rows, schema=schema)
    at = table.schema.get_field_index("class")
    table = table.set_column(at, "class", table["class"].dictionary_encode())
    with pa.ipc.new_stream(out / "stream.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=777)
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(out / "file.arrow", table.schema, options=packed) as writer:
        writer.write_table(table, max_chunksize=5000)
    pyarrow.feather.write_feather(table, out / "rows.feather")
    pyarrow.parquet.write_table(table, out / "rows.parquet", data_page_size=4096, row_group_size=3333)
    datasets.Dataset.from_list(rows, features=datasets.Features.from_arrow_schema(schema)).save_to_disk(
        str(out / "saved"), num_shards=3
    )


def compare_rows(expected):
    differ = count = 0
    with open(expected) as lines:
        for ours, theirs in zip(sys.stdin, lines, strict=True):
            count += 1
            differ += json.loads(ours) != json.loads(theirs)
    print("rows", differ, count)


def main():
    match sys.argv[1:]:
        case ["fsdp", directory]:
            fsdp(Path(directory))
        case ["tensors", expected, directory]:
            tensors(Path(expected), Path(directory))
        case ["write-rows", directory, count]:
            write_rows(Path(directory), int(count))
        case ["rows", expected]:
            compare_rows(expected)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
