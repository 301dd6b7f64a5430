//! The runs program: lists runs, reports on them, serves a page of them, exports and follows them. [`crate::runs`] does
//! the work.

mod watch;

use crate::cli::{program, terminal};
use crate::runs::serve::{ServeOptions, Server};
use crate::runs::{ExportFormat, Report, Repository, RunDirectory, RunState, export, write_csv};
use crate::{Error, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use model_center_base::error::ExitStatus;
use model_center_base::file::{printable, write_atomic};
use serde_json::json;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use watch::watch;

/// Look at runs: lists, reports, a local page, exports. Nothing is sent anywhere, and training is not touched.
///
/// Example: bmtrain runs serve --repo runs
#[derive(Debug, Parser)]
#[command(name = "runs", version)]
pub struct Options {
    /// Task of the program.
    #[command(subcommand)]
    pub task: Task,
}

/// What to do with runs.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// List the runs below a directory.
    List {
        /// The directory.
        #[arg(long, value_name = "DIR", default_value = ".")]
        repo: PathBuf,
        /// Print an object for each run.
        #[arg(long)]
        json: bool,
    },
    /// Write a report of one run, or of several beside each other: one page without anything from elsewhere, and the
    /// same as Markdown and JSON. Also of a run that crashed.
    Report {
        /// The directories of the runs.
        #[arg(value_name = "RUN", required = true)]
        runs: Vec<PathBuf>,
        /// The page; Markdown and JSON are written beside it. Earlier reports of these names are replaced.
        #[arg(long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Serve a page of the runs below a directory, live while they train.
    Serve(Serve),
    /// Write the scalars of a run for other programs.
    Export {
        /// The directory of the run.
        run: PathBuf,
        /// What is written.
        #[arg(long, value_enum)]
        format: Format,
        /// The file, or for TensorBoard the directory; CSV is printed by default.
        #[arg(long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
    /// Follow a run in a terminal, until it ends.
    Watch {
        /// The directory of the run.
        run: PathBuf,
        /// Earlier lines to print first.
        #[arg(long, value_name = "N", default_value_t = 10)]
        last: usize,
    },
}

/// Where a page is served.
#[derive(Debug, Args)]
pub struct Serve {
    /// The address to listen on. Any but a loopback address lets other machines read the page.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// The port; 0 takes a free one.
    #[arg(long, value_name = "N", default_value_t = 43800)]
    pub port: u16,
    /// The directory of runs.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub repo: PathBuf,
    /// A name by which browsers may ask for the page, beside localhost and addresses; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    /// Let the page delete runs although other machines can reach it.
    #[arg(long)]
    pub allow_delete: bool,
    /// Do not let the page delete runs.
    #[arg(long, conflicts_with = "allow_delete")]
    pub read_only: bool,
}

/// A format of exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A row for each record.
    Csv,
    /// Event files.
    Tensorboard,
    /// The same table in Apache Parquet.
    Parquet,
}

/// The program: what the binary's `main` calls.
pub fn main() -> ExitCode {
    program::tool(run)
}

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    match &options.task {
        Task::List { repo, json } => list(repo, *json)?,
        Task::Report { runs, output } => report(runs, output)?,
        Task::Serve(options) => serve(options)?,
        Task::Export { run, format, output } => export_run(run, *format, output.as_deref())?,
        Task::Watch { run, last } => watch(&RunDirectory::open(run)?, *last)?,
    }
    Ok(ExitStatus::Done)
}

fn list(repo: &Path, as_json: bool) -> Result<()> {
    let mut runs = Repository::new(repo);
    runs.refresh()?;
    if as_json {
        let objects = runs.runs().iter().map(|run| {
            let summary = &run.summary;
            let object = json!({
                "id": run.directory.id, "name": run.recipe.name, "state": run.state, "reason": run.reason,
                "step": summary.step, "loss": summary.loss, "tags": run.recipe.tags, "tokens": summary.tokens,
                "seconds": summary.seconds, "eval": summary.best_eval.as_ref().or(summary.last_eval.as_ref()),
            });
            object.to_string()
        });
        let lines: Vec<String> = objects.collect();
        return if lines.is_empty() { Ok(()) } else { terminal::print(&lines.join("\n")) };
    }
    if runs.runs().is_empty() {
        terminal::note(&format!("there is no run below {}", repo.display()));
        return Ok(());
    }
    let mut rows = vec![["run", "name", "state", "step", "loss", "tags"].map(str::to_owned)];
    rows.extend(runs.runs().iter().map(|run| {
        let state = match run.state {
            RunState::Crashed => format!("crashed ({})", run.reason),
            state => state.name().to_owned(),
        };
        let loss = run.summary.loss.map(|loss| format!("{loss:.4}")).unwrap_or_default();
        let shown = |text: &str| printable(text, 60);
        let tags = shown(&run.recipe.tags.join(", "));
        let id = shown(&run.directory.id);
        [id, shown(&run.recipe.name), shown(&state), run.summary.step.to_string(), loss, tags]
    }));
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or(0)).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    terminal::print(&lines.collect::<Vec<_>>().join("\n"))
}

fn report(runs: &[PathBuf], page: &Path) -> Result<()> {
    let found = runs.iter().map(|run| RunDirectory::open(run)).collect::<Result<Vec<_>>>()?;
    let report = Report::of(&found)?;
    let json = serde_json::to_string_pretty(&report.json()).unwrap_or_default();
    let forms = [("html", report.html()), ("md", report.markdown()), ("json", json)];
    for (ending, text) in forms {
        let path = if ending == "html" { page.to_owned() } else { page.with_extension(ending) };
        write_atomic(&path, text.as_bytes())?;
        terminal::print(&path.display().to_string())?;
    }
    Ok(())
}

fn serve(options: &Serve) -> Result<()> {
    let is_local = options.host.is_loopback();
    let asked = ServeOptions {
        address: options.host,
        port: options.port,
        allow_delete: !options.read_only && (is_local || options.allow_delete),
        names: options.name.clone(),
    };
    let server = Server::bind(&options.repo, &asked)?;
    if !is_local {
        terminal::note("warning: every machine that reaches this address can read the runs");
    }
    let begun = std::time::Instant::now();
    let (runs, read) = server.index()?;
    let seconds = begun.elapsed().as_secs_f64();
    terminal::print(&format!("{runs} runs, {read} of them indexed in {seconds:.2} s: http://{}/", server.address()))?;
    server.run();
    Ok(())
}

fn export_run(run: &Path, format: Format, output: Option<&Path>) -> Result<()> {
    let run = RunDirectory::open(run)?;
    let format = match (format, output) {
        (Format::Csv, None) => {
            let mut bytes = Vec::new();
            // Writing to memory does not fail.
            let _ = write_csv(&run, &mut bytes)?;
            return terminal::print_bytes(&bytes).map(drop);
        }
        (_, None) => {
            let reason = "this format is not text to be printed";
            return Err(Error::argument("--output", reason, "name what is to be written with --output PATH"));
        }
        (Format::Csv, _) => ExportFormat::Csv,
        (Format::Tensorboard, _) => ExportFormat::Tensorboard,
        (Format::Parquet, _) => ExportFormat::Parquet,
    };
    export(&run, format, output.unwrap_or(Path::new("")))
}
