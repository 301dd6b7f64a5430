"""Golden data for optimizers and learning-rate schedules: 50 steps of PyTorch's optimizers on given gradients, and the
rates of PyTorch's and transformers' schedules.

Writes crates/bmtrain-dist/tests/golden/optimizers/golden.safetensors. The data are committed; run this only to change
them, in the environment of scripts/python_env.sh:

    "$(scripts/python_env.sh)" scripts/golden/make_optimizers.py            # or with --check

Two matrices that decay and a vector that does not take the same gradients with each optimizer, all in 32-bit floats but
for Muon, whose matrices PyTorch orthogonalises in bf16: here in 64-bit floats. Lion is written out, after lion-pytorch.
"""

from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch.optim import lr_scheduler

from goldens import run

STEPS, DECAY, LR = 50, 0.1, 0.01
OUT = Path(__file__).resolve().parents[2] / "crates/bmtrain-dist/tests/golden"


class Lion(torch.optim.Optimizer):
    """lion_pytorch.Lion: the sign of a mixture moves the parameter, then the average goes on."""

    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(average.clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_(), alpha=-group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def orthogonalised(matrix, coefficients, steps, eps):
    """torch.optim's function of Muon, in the matrix's own type."""
    a, b, c = coefficients
    x = matrix if matrix.size(0) <= matrix.size(1) else matrix.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if matrix.size(0) <= matrix.size(1) else x.T


torch.optim._muon._zeropower_via_newtonschulz = orthogonalised


class Muon:
    """Muon for what decays, the matrices, and AdamW for the rest."""

    def __init__(self, groups, **options):
        rest = [{"params": groups[1]["params"], "weight_decay": groups[1]["weight_decay"]}]
        self.all = [torch.optim.Muon(groups[:1], lr=LR / 10, **options), torch.optim.AdamW(rest, lr=LR / 10)]

    def step(self):
        for one in self.all:
            one.step()


optim = torch.optim
OPTIMIZERS = {
    "adam": lambda groups: optim.Adam(groups, lr=LR),
    "adamw": lambda groups: optim.AdamW(groups, lr=LR, betas=(0.9, 0.95)),
    "sgd": lambda groups: optim.SGD(groups, lr=LR),
    "sgd-momentum": lambda groups: optim.SGD(groups, lr=LR, momentum=0.9, dampening=0.25),
    "sgd-nesterov": lambda groups: optim.SGD(groups, lr=LR, momentum=0.9, nesterov=True),
    "adagrad": lambda groups: optim.Adagrad(groups, lr=LR, lr_decay=0.01, initial_accumulator_value=0.1),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=LR),
    "rmsprop-momentum": lambda groups: optim.RMSprop(groups, lr=LR, alpha=0.9, momentum=0.5),
    "rmsprop-centered": lambda groups: optim.RMSprop(groups, lr=LR, centered=True),
    "rmsprop-both": lambda groups: optim.RMSprop(groups, lr=LR, momentum=0.5, centered=True),
    "adadelta": lambda groups: optim.Adadelta(groups, lr=1.0),
    "adamax": lambda groups: optim.Adamax(groups, lr=LR),
    "nadam": lambda groups: optim.NAdam(groups, lr=LR),
    "nadam-decoupled": lambda groups: optim.NAdam(groups, lr=LR, decoupled_weight_decay=True),
    "radam": lambda groups: optim.RAdam(groups, lr=LR),
    "radam-decoupled": lambda groups: optim.RAdam(groups, lr=LR, decoupled_weight_decay=True),
    "adam-climbing": lambda groups: optim.Adam(groups, lr=LR, maximize=True),
    "sgd-climbing": lambda groups: optim.SGD(groups, lr=LR, momentum=0.9, maximize=True),
    "lion": lambda groups: Lion(groups, lr=LR),
    "adafactor": lambda groups: transformers.Adafactor(
        groups, lr=LR, scale_parameter=False, relative_step=False),
    "adafactor-scaled": lambda groups: transformers.Adafactor(
        groups, lr=10 * LR, scale_parameter=True, relative_step=False, clip_threshold=0.5),
    "muon": lambda groups: Muon(groups),
    "muon-plain": lambda groups: Muon(groups, momentum=0.9, nesterov=False, adjust_lr_fn="match_rms_adamw"),
}

# W steps of warm-up of E.
WARMUP, END, LAST_RATIO = 10, 60, 0.1
SCHEDULES = {
    "constant": lambda o: transformers.get_constant_schedule_with_warmup(o, WARMUP),
    "linear": lambda o: transformers.get_linear_schedule_with_warmup(o, WARMUP, END),
    "cosine": lambda o: transformers.get_cosine_schedule_with_warmup(o, WARMUP, END),
    "cosine-with-min": lambda o: transformers.optimization.get_cosine_with_min_lr_schedule_with_warmup(
        o, WARMUP, END, min_lr_rate=LAST_RATIO),
    # A polynomial of power 1, which transformers has in the place of a line with a minimum.
    "linear-with-min": lambda o: transformers.get_polynomial_decay_schedule_with_warmup(
        o, WARMUP, END, lr_end=LR * LAST_RATIO, power=1.0),
    "cosine-restarts": lambda o: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(
        o, WARMUP, END, num_cycles=3),
    "polynomial": lambda o: transformers.get_polynomial_decay_schedule_with_warmup(
        o, WARMUP, END, lr_end=LR * LAST_RATIO, power=2.0),
    "wsd-cosine": lambda o: transformers.get_wsd_schedule(o, WARMUP, 12, num_training_steps=END),
    "wsd-linear": lambda o: transformers.get_wsd_schedule(o, WARMUP, 12, num_training_steps=END, decay_type="linear"),
    "wsd-root": lambda o: transformers.get_wsd_schedule(o, WARMUP, 12, num_training_steps=END, decay_type="1-sqrt"),
    # pct_start and div_factor such that the peak is at step WARMUP - 1 and the end at LAST_RATIO.
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=LR, total_steps=END, pct_start=WARMUP / END, div_factor=25.0, final_div_factor=1 / 25 / LAST_RATIO,
        cycle_momentum=False),
}


def values(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float32)


def trained(name, make, start, grads):
    dtype = torch.float64 if name.startswith("muon") else torch.float32
    params = {part: torch.nn.Parameter(tensor.to(dtype, copy=True)) for part, tensor in start.items()}
    groups = [{"params": [params["weight"], params["wide"]], "weight_decay": DECAY},
              {"params": [params["bias"]], "weight_decay": 0.0}]
    optimizer = make(groups)
    for step in range(STEPS):
        for part, param in params.items():
            param.grad = grads[part][step].to(dtype, copy=True)
        optimizer.step()
    return {part: param.detach().float() for part, param in params.items()}


def rates(make):
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule, found = make(optimizer), []
    for _ in range(END):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(found) < END:
            schedule.step()
    return torch.tensor(found, dtype=torch.float64)


def write(out):
    generator = torch.Generator().manual_seed(11)
    shapes = {"weight": (6, 4), "wide": (3, 5), "bias": (5,)}
    start = {name: 0.3 * values(generator, *shape) for name, shape in shapes.items()}
    grads = {name: values(generator, STEPS, *shape) for name, shape in shapes.items()}
    tensors = {f"start.{name}": tensor for name, tensor in start.items()}
    tensors |= {f"grad.{name}": tensor for name, tensor in grads.items()}
    for name, make in OPTIMIZERS.items():
        tensors |= {f"{name}.{part}": tensor for part, tensor in trained(name, make, start, grads).items()}
    tensors |= {f"schedule.{name}": rates(make) for name, make in SCHEDULES.items()}
    (out / "optimizers").mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "optimizers/golden.safetensors")


if __name__ == "__main__":
    run(__doc__, write, OUT)
