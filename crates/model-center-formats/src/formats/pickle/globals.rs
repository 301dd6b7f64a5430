//! Meaning of a name in a pickle: a type of storage, a constructor of tensors, plain data, or nothing at all.

use std::fmt;

use super::super::safetensors::StoredDtype;
use model_center_base::file::printable;

/// A name that a pickle refers to. It is text and stays text: nothing is ever looked up or called.
#[derive(Debug, PartialEq, Eq)]
pub struct Global {
    pub module: String,
    pub name: String,
}

impl fmt::Display for Global {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", printable(&self.module, 80), printable(&self.name, 80))
    }
}

/// Meaning of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A dictionary, empty or of pairs.
    Dictionary,
    /// A tensor over a storage.
    Tensor,
    /// The tensor that is its first argument.
    Parameter,
    /// Another call as an object of a class and with attributes: `(function, class, arguments, state)`.
    OfClass,
    /// The arguments of a command line.
    Namespace,
    /// The tuple that is its first argument.
    Shape,
    /// A value of plain data whose contents play no part: an inert object.
    Plain,
}

impl Global {
    /// Meaning of a call of this name; `None` where the call is refused. The list is short on purpose: a name is added
    /// when a real file of weights has it, and only if what it makes is data.
    pub(super) fn meaning(&self) -> Option<Meaning> {
        Some(match (self.module.as_str(), self.name.as_str()) {
            ("collections", "OrderedDict" | "defaultdict" | "Counter") => Meaning::Dictionary,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Meaning::Tensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Meaning::Parameter,
            ("torch._tensor", "_rebuild_from_type" | "_rebuild_from_type_v2") => Meaning::OfClass,
            ("argparse", "Namespace") => Meaning::Namespace,
            ("torch", "Size") => Meaning::Shape,
            ("torch", "device")
            | ("torch.serialization", "_get_layout")
            | ("megatron.model.enums" | "megatron.core.enums" | "megatron.core.transformer.enums", _)
            | ("deepspeed.runtime.zero.config", "ZeroStageEnum")
            | ("_codecs", "encode")
            | ("numpy", "dtype")
            | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar" | "_reconstruct")
            | ("datetime", "datetime" | "date" | "timedelta")
            | ("pathlib", "Path" | "PosixPath" | "PurePosixPath" | "WindowsPath" | "PureWindowsPath") => Meaning::Plain,
            (module, name) if is_builtin(module) && PLAIN_BUILTINS.contains(&name) => Meaning::Plain,
            _ => return None,
        })
    }

    /// Whether it is a class of whole tensors without data beside them: with it, attributes are all that a tensor has
    /// more.
    pub(super) fn is_tensor_class(&self) -> bool {
        let known = [("torch", "Tensor"), ("torch._tensor", "Tensor"), ("torch.nn.parameter", "Parameter")];
        known.contains(&(self.module.as_str(), self.name.as_str()))
    }

    /// Fix for an object that is one rank's part of a tensor; `None` for other names.
    pub(super) fn sharded(&self) -> Option<&'static str> {
        let is_known = self.module.starts_with("torch.distributed") || self.module.starts_with("torch.testing");
        let is_dtensor = is_known && ["DTensor", "ShardedTensor", "Shard"].contains(&self.name.as_str());
        is_dtensor.then_some(
            "gather the tensors before saving: get_model_state_dict of \
             torch.distributed.checkpoint.state_dict with StateDictOptions(full_state_dict=True); or save with \
             torch.distributed.checkpoint and give its directory",
        )
    }

    /// Whether the name itself gives a file away: weights have no use for what runs programs, opens files or loads
    /// code. It would do nothing here, since nothing is called; but the user should know what kind of file it is.
    pub(super) fn is_suspect(&self) -> bool {
        if is_builtin(&self.module) {
            return !PLAIN_BUILTINS.contains(&self.name.as_str()) && !PLAIN_TYPES.contains(&self.name.as_str());
        }
        let top = self.module.split('.').next().unwrap_or_default();
        SUSPECT_MODULES.contains(&top) || self.module.starts_with("torch.hub") || self.name.contains("__")
    }
}

fn is_builtin(module: &str) -> bool {
    matches!(module, "builtins" | "__builtin__")
}

/// Builtin types whose values are data.
const PLAIN_BUILTINS: &[&str] = &["set", "frozenset", "bytearray", "complex", "slice", "range", "xrange"];
/// Builtin types that are named, as the factory of a dictionary of defaults, and not called.
const PLAIN_TYPES: &[&str] =
    &["object", "int", "long", "float", "bool", "str", "unicode", "bytes", "list", "tuple", "dict"];

/// Modules that run programs, load code, reach files or the network, or make calls out of data.
const SUSPECT_MODULES: &[&str] = &[
    "_pickle",
    "_posixsubprocess",
    "asyncio",
    "bdb",
    "cProfile",
    "code",
    "codeop",
    "commands",
    "ctypes",
    "doctest",
    "ftplib",
    "http",
    "imp",
    "importlib",
    "marshal",
    "multiprocessing",
    "nt",
    "operator",
    "os",
    "pdb",
    "pickle",
    "pip",
    "pkgutil",
    "posix",
    "pty",
    "pydoc",
    "requests",
    "runpy",
    "shutil",
    "smtplib",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "timeit",
    "urllib",
    "urllib2",
    "venv",
    "webbrowser",
    "zipimport",
];

/// The element type of a storage class, `None` for any other name.
pub(super) fn stored_type(class: &Global) -> Option<StoredDtype> {
    if class.module == "torch.storage" && class.name == "UntypedStorage" {
        return Some(StoredDtype::U8);
    }
    if class.module != "torch" {
        return None;
    }
    Some(match class.name.as_str() {
        "DoubleStorage" => StoredDtype::F64,
        "FloatStorage" => StoredDtype::F32,
        "HalfStorage" => StoredDtype::F16,
        "BFloat16Storage" => StoredDtype::BF16,
        "LongStorage" => StoredDtype::I64,
        "IntStorage" => StoredDtype::I32,
        "ShortStorage" => StoredDtype::I16,
        "CharStorage" => StoredDtype::I8,
        "ByteStorage" => StoredDtype::U8,
        "BoolStorage" => StoredDtype::BOOL,
        _ => return None,
    })
}
