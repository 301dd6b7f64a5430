"""Train, fine-tune and run transformers with few resources.

A :class:`Model` is opened from a Hugging Face directory, with ``adapter=`` to train LoRA or another adapter of it;
:meth:`Model.dataset` tokenizes records of any iterable; a :class:`Trainer` makes steps with their batches;
:meth:`Model.generate` continues texts; :meth:`Model.save` writes a directory that transformers or PEFT opens.
:func:`finetune` runs a whole recipe, and :func:`read_metrics` reads what it wrote.

Each model computes on a thread of its own, and calls release the interpreter's lock while they wait for it. Exceptions
are :class:`Error` and its subclasses, whose message has the place, the reason and the fix.
"""

from ._bmtrain import (
    ArgumentError,
    Batch,
    BatchIterator,
    DataError,
    Dataset,
    DivergedError,
    Error,
    Model,
    ModelError,
    OutputError,
    StepResult,
    Trainer,
    __version__,
    finetune,
    read_metrics,
)

__all__ = [
    "ArgumentError",
    "Batch",
    "BatchIterator",
    "DataError",
    "Dataset",
    "DivergedError",
    "Error",
    "Model",
    "ModelError",
    "OutputError",
    "StepResult",
    "Trainer",
    "__version__",
    "finetune",
    "read_metrics",
]
