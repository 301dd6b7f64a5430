"""What the makers of golden data share: pinned versions, the training run, the comparison, the command line.

Imported by encoders.py, decoders.py, seq2seq.py and make_pickles.py, which run in the environment of
scripts/python_env.sh.
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

PINNED = {"torch": "2.15.0", "transformers": "5.23.0"}
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden"

# Weights and biases are initialized with this deviation, norm weights around one: large enough that no gradient is
# tiny by accident, small enough that the softmaxes are not saturated.
DEVIATION = 0.2

TRAINING = {"steps": 30, "warmup": 6, "lr": 5e-3, "weight_decay": 0.01, "max_norm": 1.0,
            "betas": (0.9, 0.999), "eps": 1e-8, "batches": 4}


def initialize_weights(model, seed, is_norm, deviation=DEVIATION, norm_mean=1.0):
    """Fills every parameter from one generator, in the order of the parameters' names; `is_norm` tells a norm's, whose
    weights are sampled around `norm_mean`. What is never trained keeps its values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted((name, p) for name, p in model.named_parameters() if p.requires_grad):
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * deviation
            is_norm_weight = is_norm(name) and name.endswith("weight")
            parameter.copy_(values + norm_mean if is_norm_weight else values)


def stored_parameters(model):
    """The parameters under the names they have in a file, where a tied one has several."""
    tied = model.all_tied_weights_keys
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if name not in tied}


def check_saved(directory, model, stored=None):
    """The directory holds once what the model stores, and the 64-bit model has exactly the values of the 32-bit
    file. `stored` has the names in files where they are not the model's."""
    saved = load_file(directory / "model.safetensors")
    left_out = {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}
    names = stored or {}
    named = {names.get(name, name): tensor for name, tensor in model.state_dict().items() if name not in left_out}
    assert saved.keys() == named.keys(), saved.keys() ^ named.keys()
    assert all(torch.equal(named[name], tensor.double()) for name, tensor in saved.items())


@contextlib.contextmanager
def in_64_bits():
    """Leaves 64-bit values as they are where transformers asks for 32-bit ones: in norms, softmaxes and angles,
    whatever the type of the model. Without it a query that sees nothing is NaN too, as its mask overflows the smaller
    type."""
    softmax, to, to_float = torch.nn.functional.softmax, torch.Tensor.to, torch.Tensor.float

    def is_narrowed(tensor, dtype):
        return tensor.dtype == torch.float64 and dtype == torch.float32

    def own_softmax(tensor, dim=None, dtype=None, **kwargs):
        return softmax(tensor, dim=dim, dtype=None if is_narrowed(tensor, dtype) else dtype, **kwargs)

    def own_to(tensor, *args, **kwargs):
        wanted = kwargs.get("dtype", args[0] if args else None)
        return tensor if is_narrowed(tensor, wanted) else to(tensor, *args, **kwargs)

    torch.nn.functional.softmax, torch.Tensor.to = own_softmax, own_to
    torch.Tensor.float = lambda tensor, *args, **kwargs: own_to(tensor, torch.float32) \
        if tensor.dtype == torch.float64 else to_float(tensor, *args, **kwargs)
    try:
        yield
    finally:
        torch.nn.functional.softmax, torch.Tensor.to, torch.Tensor.float = softmax, to, to_float


def learning_rate(step):
    """Linear warm-up and decay; `step` counts optimizer steps from 0, so the first step has rate 0."""
    warmup, end = TRAINING["warmup"], TRAINING["steps"]
    if step < warmup:
        return TRAINING["lr"] * step / warmup
    return max(0.0, TRAINING["lr"] * (end - step) / (end - warmup))


def train(model, batches, is_norm, loss_of):
    """Loss, gradient norm before clipping and learning rate of every AdamW step; `loss_of(model, batch)` is the
    loss."""
    plain = [p for name, p in model.named_parameters() if name.endswith(".bias") or is_norm(name)]
    decayed = [p for name, p in model.named_parameters() if not (name.endswith(".bias") or is_norm(name))]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": TRAINING["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=0.0, betas=TRAINING["betas"], eps=TRAINING["eps"])
    losses, norms, rates = [], [], []
    for step in range(TRAINING["steps"]):
        loss = loss_of(model, batches[step % len(batches)])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING["max_norm"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
        rates.append(learning_rate(step))
    return {name: torch.tensor(values, dtype=torch.float64)
            for name, values in (("losses", losses), ("grad_norms", norms), ("lrs", rates))}


def case_of(build, batches, is_norm, outputs_of):
    """Of a case: the outputs of the first batch, which `outputs_of(model, batch)` gives by name with the loss among
    them, the batches, the gradients of the loss, and what `train` records of steps by that loss."""
    model = build()
    found = outputs_of(model, batches[0])
    found["loss"].backward()
    found |= {f"batch.{number}.{name}": tensor
              for number, batch in enumerate(batches) for name, tensor in batch.items()}
    found |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    found |= train(build(), batches, is_norm, lambda model, batch: outputs_of(model, batch)["loss"])
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def write_cases(out, name, cases):
    """Writes `name`/golden.safetensors with the tensors of cases, each after the case's name, and prints the losses."""
    for case, found in cases.items():
        losses = found["losses"]
        print(f"{case}: loss {found['loss'].item():.6f}; training {losses[0]:.4f} -> {losses[-1]:.4f}")
    tensors = {f"{case}.{name}": tensor for case, found in cases.items() for name, tensor in found.items()}
    (out / name).mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / name / "golden.safetensors")


def train_twice(build, batches, is_norm, loss_of):
    """The run in 64-bit floats, its file's tensors, and how far PyTorch's own 32-bit run strays from it."""
    with in_64_bits():
        run = train(build().double().train(), batches, is_norm, loss_of)
    narrow = train(build().train(), batches, is_norm, loss_of)
    drift = ((run["losses"] - narrow["losses"]).abs().max() / run["losses"][0]).item()
    tensors = run | {f"batch.{k}.{name}": tensor for k, batch in enumerate(batches) for name, tensor in batch.items()}
    return run, tensors, drift


def gradient_norm(golden):
    """2-norm over all gradients of a golden file."""
    return torch.sqrt(sum((t**2).sum() for n, t in golden.items() if n.startswith("grad."))).item()


def check_against(committed, fresh):
    """Differences between two golden trees, as sentences; integers and 32-bit floats must be equal."""
    faults = []
    for path in sorted(fresh.rglob("*.safetensors")):
        relative = path.relative_to(fresh)
        if not (committed / relative).is_file():
            faults.append(f"{relative} is missing")
            continue
        old, new = load_file(committed / relative), load_file(path)
        if old.keys() != new.keys():
            faults.append(f"{relative}: tensor names differ: {sorted(old.keys() ^ new.keys())}")
            continue
        for name in new:
            if new[name].dtype == torch.float64:
                # Another processor may sum in another order.
                same = old[name].shape == new[name].shape and torch.allclose(old[name], new[name], rtol=1e-9,
                                                                             atol=1e-12)
            else:
                same = torch.equal(old[name], new[name])
            if not same:
                faults.append(f"{relative}: {name} differs")
    return faults


def start(description, directory=DEFAULT_OUT):
    """The command line, with versions checked and PyTorch on one thread."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, default=directory, help="directory to write (default: the committed one)")
    parser.add_argument("--check", action="store_true", help="recompute and compare instead of writing")
    arguments = parser.parse_args()
    for module, version in ((torch, PINNED["torch"]), (transformers, PINNED["transformers"])):
        if module.__version__.split("+")[0] != version:
            sys.exit(f"error: {module.__name__} is {module.__version__}, the goldens are pinned to {version}\n"
                     "  fix: use the interpreter that scripts/python_env.sh prints")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    return arguments


def run(description, write_all, directory=DEFAULT_OUT):
    """The command line: write the data with `write_all(directory)`, or recompute and compare them. `directory` is where
    the committed ones are."""
    arguments = start(description, directory)
    if not arguments.check:
        write_all(arguments.out)
        return
    with tempfile.TemporaryDirectory() as fresh:
        write_all(Path(fresh))
        faults = check_against(arguments.out, Path(fresh))
    print("\n".join(faults) if faults else "golden data are as committed")
    sys.exit(1 if faults else 0)
