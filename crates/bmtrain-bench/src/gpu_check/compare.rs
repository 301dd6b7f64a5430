//! The models' speed beside PyTorch's, from two files: no device is opened.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::path::Path;

/// Fields of gpu-check's JSON.
#[derive(Debug, Deserialize)]
struct Ours {
    emulated: bool,
    parts: Parts,
}

#[derive(Debug, Deserialize)]
struct Parts {
    environment: Option<Environment>,
    models: Option<Models>,
}

#[derive(Debug, Deserialize)]
struct Environment {
    device: Named,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Models {
    models: Vec<Model>,
}

/// Fields of the JSON of `scripts/torch_gpu_step.py`.
#[derive(Debug, Deserialize)]
struct Theirs {
    device: Named,
    versions: Versions,
    compile: String,
    models: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Versions {
    torch: String,
}

/// Steps of a model, as both files have them.
#[derive(Debug, Deserialize)]
struct Model {
    model: String,
    dtype: String,
    dropout: f32,
    length: usize,
    rows: usize,
    recompute: bool,
    tokens_per_s: f64,
    flops_per_token: f64,
    share: f64,
    peak_bytes: Option<u64>,
}

impl Model {
    /// Settings that have to be the same on both sides.
    fn shape(&self) -> String {
        let Model { dtype, dropout, length, rows, flops_per_token, .. } = self;
        format!("{rows} x {length} in {dtype}, dropout {dropout}, {flops_per_token:.0} operations a token")
    }

    fn memory(&self) -> String {
        self.peak_bytes.map_or("-".into(), |bytes| format!("{:.2}", bytes as f64 / f64::from(1 << 30)))
    }
}

/// The table of both files' models.
///
/// # Errors
/// In one line: a file that cannot be read or is not the program's, another device, a model of another shape, no
/// model that both have.
pub fn compare(ours: &Path, theirs: &Path) -> Result<String, String> {
    let (report, torch) =
        (read::<Ours>(ours, "gpu-check --json")?, read::<Theirs>(theirs, "torch_gpu_step.py --json")?);
    let lacks = |part: &str| format!("{}: it lacks the part {part}; run gpu-check --only {part}", ours.display());
    let device = report.parts.environment.ok_or_else(|| lacks("environment"))?.device.name;
    let models = report.parts.models.ok_or_else(|| lacks("models"))?.models;
    if device != torch.device.name {
        return Err(format!(
            "different devices: {device} in {}, {} in {}; write both files on one device",
            ours.display(),
            torch.device.name,
            theirs.display()
        ));
    }
    let (version, compile) = (&torch.versions.torch, &torch.compile);
    let mut lines = vec![
        format!("{device}; PyTorch {version}, torch.compile {compile}; thousands of tokens per second"),
        row(["model", "rows", "ours", "PyTorch", "ratio", "% of product", "PyTorch's", "GiB", "PyTorch's"]),
    ];
    let mut common = 0;
    for one in &models {
        let Some(other) = torch.models.iter().find(|other| other.model == one.model) else {
            lines.push(format!("{}: only in {}", one.model, ours.display()));
            continue;
        };
        if one.shape() != other.shape() {
            return Err(format!(
                "different shapes of {}: {}; PyTorch {}; write PyTorch's file anew with --like {}",
                one.model,
                one.shape(),
                other.shape(),
                ours.display()
            ));
        }
        common += 1;
        let (a, b) = (one.tokens_per_s, other.tokens_per_s);
        let name = if one.recompute { format!("{}, recomputed", one.model) } else { one.model.clone() };
        lines.push(row([
            &name,
            &format!("{} x {}", one.rows, one.length),
            &format!("{:.1}", a / 1e3),
            &format!("{:.1}", b / 1e3),
            &format!("{:.2}", a / b),
            &format!("{:.1}", 100.0 * one.share),
            &format!("{:.1}", 100.0 * other.share),
            &one.memory(),
            &other.memory(),
        ]));
    }
    let alone = torch.models.iter().filter(|other| models.iter().all(|one| one.model != other.model));
    lines.extend(alone.map(|other| format!("{}: only in {}", other.model, theirs.display())));
    if common == 0 {
        return Err(format!(
            "no model is both in {} and in {}; run both programs without --only",
            ours.display(),
            theirs.display()
        ));
    }
    let mark = if report.emulated { "emulated: " } else { "" };
    Ok(lines.iter().map(|line| format!("{mark}{line}")).collect::<Vec<_>>().join("\n"))
}

fn read<T: DeserializeOwned>(path: &Path, program: &str) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("{}: not a file of {program}: {error}; write it anew", path.display()))
}

/// A line of the table.
fn row([model, rows, figures @ ..]: [&str; 9]) -> String {
    let mut line = format!("{model:<34} {rows:>10}");
    for figure in figures {
        // Writing to a string cannot fail.
        let _ = write!(line, " {figure:>12}");
    }
    line
}
