//! The predict program: a fine-tuned model and a file of inputs in; predictions and, where labels are known, metrics
//! out. What is computed is in [`model_center_train::predict`]. The manual is `docs/predict.md`.

mod options;
mod output;

pub use options::{Columns, Form, Options, Results, Settings};

use self::output::ResultWriter;
use crate::cli::{device, flags::with_flags, opened, program, terminal};
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use model_center_base::error::ExitStatus;
use model_center_base::file::{AtomicFile, write_atomic};
use model_center_base::stop_flag::StopFlag;
use model_center_data::metrics::Metric;
use model_center_data::{Format, Record};
use model_center_formats::config::TextHead;
use model_center_formats::io::record::NO_FORMAT;
use model_center_formats::tokenizer::AutoTokenizer;
use model_center_models::adapter::{Adapter, tokenizer_directory};
use model_center_models::{OpenMode, OpenOptions, Registry, TextModel};
use model_center_recipe::run::{Progress, ProgressMode, listen};
use model_center_train::predict::{
    InputFormat, InputRecords, KnownLabel, PredictInput, PredictionKind, Predictor, Rating, RecordFields,
};
use serde_json::{Map, Value};
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Records that are predicted together; more of them need less padding.
const CHUNK: usize = 1024;
/// Reported records that could not be used.
const REPORTED: usize = 3;

/// The program: what a binary's `main` calls, with the families of its registry.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// A model or inputs that cannot be used, options out of range, a file that cannot be written.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let threads = options.device.threads()?;
    let (model, adapter) = opened::adapted(&options.model, &options.source)?;
    let directory = opened::resolve(&model, options.source.revision.as_deref(), None)?;
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let open = |device: &Device| open_options(options, adapter.as_ref(), device);
    let sketch = registry.open(&directory, &OpenOptions { mode: OpenMode::Check, ..open(&nowhere) })?;
    if let Some(name) = sketch.initialized.first() {
        let reason = format!("its weights have no {name}, so its head is not trained");
        let fix = "give the directory of a fine-tuned model, or ask for --embeddings";
        return Err(Error::model(directory.display().to_string(), reason, fix));
    }
    if !options.results.quiet {
        opened::note_opened(&sketch, &directory)?;
    }
    let info = sketch.model.info();
    let kind = PredictionKind::of(info, &directory).and_then(|kind| match options.settings.labels.as_slice() {
        [] => Ok(kind),
        names => kind.named(names.to_vec()),
    });
    let kind = kind.map_err(with_flags)?;
    check_results(options, &kind)?;
    if kind.is_unnamed() && !options.results.quiet {
        let text =
            format!("note: the model does not name its classes, {}; --labels names them", kind.names().join(", "));
        terminal::note(&text);
    }
    let texts = tokenizer_directory(adapter.as_ref(), &directory)?;
    let predictor = Predictor::new((kind, info), AutoTokenizer::open(texts)?, options.settings.options());
    let predictor = predictor.and_then(|predictor| predictor.with_chat_template(texts)).map_err(with_flags)?;
    // Everything that may be wrong with options and files, before weights are read.
    let columns = options.columns.columns();
    let fields = RecordFields::new(predictor.kind(), &columns).map_err(with_flags)?;
    let (threshold, further) = (options.settings.threshold, &options.results.metric);
    let rating = Rating::new(predictor.kind(), threshold, further).map_err(with_flags)?;
    let records = match &options.inputs {
        Some(path) => InputRecords::open(path, format(options, path)?)?,
        None => InputRecords::given("--sentence", options.sentences()),
    };
    let writer = ResultWriter::open(predictor.kind(), options.results.out.as_deref())?;
    // Whether it can be written is known now.
    options.results.metrics_out.as_deref().map(AtomicFile::create).transpose()?;
    let stop = StopFlag::default();
    let _listening = listen(&stop)?;
    let device = device::open(options.device.device, (0, 1), threads, !options.results.quiet)?;
    let device = Device::new(device.backend);
    let opened = registry.open(&directory, &open(&device))?;
    let mut pass = Pass { options, predictor: &predictor, fields, model: (&*opened.model, &device), stop: &stop };
    let totals = pass.run(records, writer, rating)?;
    match totals.end {
        End::Done => report(&totals, &options.results)?,
        // Nothing is known of the records that were not read.
        End::Unread => {}
        End::Stopped => {
            terminal::note(&format!("stopped after {} records; no file was written", totals.records));
            return Ok(ExitStatus::Stopped);
        }
    }
    Ok(ExitStatus::Done)
}

/// Refuses files of results that lose the inputs or cannot be made.
fn check_results(options: &Options, kind: &PredictionKind) -> Result<()> {
    let (results, columns) = (&options.results, &options.columns);
    let inputs = options.inputs.as_ref().and_then(|path| path.canonicalize().ok());
    for (flag, path) in [("--out", &results.out), ("--metrics-out", &results.metrics_out)] {
        if inputs.is_some() && path.as_ref().and_then(|path| path.canonicalize().ok()) == inputs {
            return Err(Error::argument(flag, "this is the file of the inputs", "give another name"));
        }
    }
    let why = match kind.labels() {
        _ if columns.without_labels => "labels are not read with --without-labels",
        None => "nothing that the model predicts is compared with labels",
        Some(_) => return Ok(()),
    };
    let given = [("--metric", !results.metric.is_empty()), ("--metrics-out", results.metrics_out.is_some())];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Error::without_effect(flag, why)),
        None => Ok(()),
    }
}

fn open_options(options: &Options, adapter: Option<&Adapter>, device: &Device) -> OpenOptions {
    let head = options.settings.embeddings.then_some(TextHead::None);
    options.device.open_options(&options.source, adapter, OpenOptions { head, ..OpenOptions::new(device) })
}

fn format(options: &Options, path: &Path) -> Result<InputFormat> {
    match (options.columns.format, options.columns.delimiter) {
        (Some(form), _) => Ok(form.format()),
        (None, Some(delimiter)) => match InputFormat::of(path) {
            Err(_)
            | Ok(InputFormat::Records(Format::Csv | Format::Tsv | Format::Separated(_)) | InputFormat::Lines) => {
                Ok(InputFormat::Records(Format::Separated(delimiter)))
            }
            Ok(_) => {
                let reason = format!("{} is not a file of columns with a delimiter, by its name", path.display());
                Err(Error::argument("--delimiter", reason, "leave it out"))
            }
        },
        (None, None) => InputFormat::of(path).map_err(|error| match error {
            Error::Data { place, reason, .. } if reason == NO_FORMAT => {
                Error::data(place, reason, "name it with --format")
            }
            other => other,
        }),
    }
}

/// End of the pass over the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum End {
    /// All were read.
    #[default]
    Done,
    /// The reader of standard output closed it.
    Unread,
    /// It was asked to stop.
    Stopped,
}

/// Totals after the last record.
#[derive(Default)]
struct Totals {
    end: End,
    records: u64,
    truncated: u64,
    skipped: Vec<String>,
    skipped_count: u64,
    rated: u32,
    metrics: Option<Vec<(Metric, f64)>>,
}

/// A record that waits for its chunk.
struct Waiting {
    place: String,
    record: Map<String, Value>,
    input: PredictInput,
    label: Option<KnownLabel>,
}

struct Pass<'p> {
    options: &'p Options,
    predictor: &'p Predictor,
    fields: RecordFields<'p>,
    model: (&'p dyn TextModel, &'p Device),
    stop: &'p StopFlag,
}

impl Pass<'_> {
    fn run(
        &mut self,
        mut records: InputRecords,
        mut writer: ResultWriter<'_>,
        mut rating: Option<Rating>,
    ) -> Result<Totals> {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_silent = self.options.results.quiet || self.options.results.out.is_none();
        let mode = ProgressMode::choose(is_silent, std::io::stderr().is_terminal(), no_color);
        let mut progress = Progress::new(mode, None);
        let (mut totals, mut waiting, mut is_read) = (Totals::default(), Vec::new(), true);
        while is_read && let Some(record) = records.next()? {
            if self.stop.is_requested() {
                totals.end = End::Stopped;
                break;
            }
            match record.and_then(|record| self.read(&record)) {
                Ok(record) => waiting.push(record),
                Err(flaw) => self.skip(flaw, &mut totals)?,
            }
            if waiting.len() == CHUNK {
                is_read = self.chunk(std::mem::take(&mut waiting), (&mut writer, &mut rating), &mut totals)?;
                progress.advance(totals.records, &format!("{} records", totals.records), true);
            }
        }
        if totals.end == End::Done && is_read && !waiting.is_empty() {
            is_read = self.chunk(waiting, (&mut writer, &mut rating), &mut totals)?;
        }
        progress.finish();
        if !is_read {
            totals.end = End::Unread;
        }
        if totals.end != End::Done {
            return Ok(totals);
        }
        if totals.records == 0 {
            let place = self.options.inputs.as_ref().map_or_else(String::new, |path| path.display().to_string());
            let reason = if totals.skipped_count > 0 { "there is no usable record" } else { "there is no record" };
            return Err(Error::data(place, reason, "check that this is the right file"));
        }
        writer.finish()?;
        if let Some(rating) = rating {
            totals.rated = rating.count();
            totals.metrics = rating.metrics().map_err(with_flags)?;
        }
        Ok(totals)
    }

    /// Question of a record, with its fields where results have them.
    fn read(&mut self, record: &Record<'_>) -> Result<Waiting> {
        let (input, label) = self.fields.read(record)?;
        let object = if self.options.results.only_predictions { Map::new() } else { record.object() };
        Ok(Waiting { place: record.place(), record: object, input, label })
    }

    /// Leave a record out, if that is asked for.
    fn skip(&self, flaw: Error, totals: &mut Totals) -> Result<()> {
        match flaw {
            flaw @ Error::Data { .. } if self.options.columns.skip_bad_records => {
                totals.skipped_count += 1;
                if totals.skipped.len() < REPORTED {
                    totals.skipped.push(with_flags(flaw).to_string());
                }
                Ok(())
            }
            flaw => Err(with_flags(flaw)),
        }
    }

    /// Predict a chunk and write its results. Returns whether standard output is still open.
    fn chunk(
        &self,
        chunk: Vec<Waiting>,
        (writer, rating): (&mut ResultWriter<'_>, &mut Option<Rating>),
        totals: &mut Totals,
    ) -> Result<bool> {
        let placed = |place: &str, error: Error| match error {
            Error::Data { reason, fix, .. } => Error::Data { place: place.to_owned(), reason, fix },
            other => other,
        };
        let (mut usable, mut prepared) = (Vec::new(), Vec::new());
        for waiting in chunk {
            match self.predictor.prepare(&waiting.input).map_err(|error| placed(&waiting.place, error)) {
                Ok(rows) => {
                    usable.push(waiting);
                    prepared.push(rows);
                }
                Err(flaw) => self.skip(flaw, totals)?,
            }
        }
        let outputs = self.predictor.outputs_of(self.model, &prepared)?;
        for ((waiting, rows), outputs) in usable.into_iter().zip(&prepared).zip(&outputs) {
            let Waiting { place, record, label, .. } = waiting;
            let prediction = self.predictor.finish(rows, outputs)?;
            if let (Some(rating), Some(label)) = (rating.as_mut(), &label) {
                rating.add(&prediction, outputs, label).map_err(|error| with_flags(placed(&place, error)))?;
            }
            totals.records += 1;
            totals.truncated += u64::from(rows.removed() > 0);
            if !writer.add(&place, record, &prediction)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Report numbers of records and metrics.
fn report(totals: &Totals, results: &Results) -> Result<()> {
    if let (Some(path), Some(metrics)) = (&results.metrics_out, &totals.metrics) {
        let mut object = Map::from_iter([("records".to_owned(), totals.records.into())]);
        object.insert("labelled".to_owned(), totals.rated.into());
        object.extend(metrics.iter().map(|(metric, value)| (metric.name().to_owned(), Value::from(*value))));
        write_atomic(path, format!("{}\n", Value::Object(object)).as_bytes())?;
    } else if let Some(path) = &results.metrics_out {
        let reason = "no record has a label, so there are no metrics";
        return Err(Error::data(path.display().to_string(), reason, "name the column of labels with --label"));
    }
    if results.quiet {
        return Ok(());
    }
    let plural = |count: u64| if count == 1 { "record" } else { "records" };
    let mut line = format!("{} {}", totals.records, plural(totals.records));
    if totals.truncated > 0 {
        line.push_str(&format!(", {} truncated", totals.truncated));
    }
    if totals.skipped_count > 0 {
        line.push_str(&format!(", {} left out", totals.skipped_count));
    }
    if let Some(metrics) = &totals.metrics {
        if u64::from(totals.rated) < totals.records {
            line.push_str(&format!(", {} with a label", totals.rated));
        }
        let figures = metrics.iter().map(|(metric, value)| format!("{} {value:.4}", metric.name()));
        line.push_str(&format!("\n{}", figures.collect::<Vec<_>>().join(", ")));
    }
    totals.skipped.iter().for_each(|flaw| terminal::note(&format!("left out: {flaw}")));
    terminal::note(&line);
    Ok(())
}
