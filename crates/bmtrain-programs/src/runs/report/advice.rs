//! Hints by rules, each with the page that explains it.

use super::ReportedRun;
use super::sections::decimal;
use crate::runs::RunState;

/// Norm from which on gradients are reported as too large.
const LARGE_NORM: f64 = 100.0;
const SLOWER: f64 = 0.8;
const WAITING: f64 = 0.05;
const SAVING: f64 = 0.05;
const GAP: f64 = 1.3;

/// What, why, and where to read on.
pub(super) fn of(run: &ReportedRun) -> Vec<Vec<String>> {
    let summary = &run.summary;
    let mut rows = Vec::new();
    let mut add = |what: &str, why: String, page: &str| rows.push(vec![what.to_owned(), why, page.to_owned()]);
    if run.state == RunState::Crashed {
        let why = format!("{}; the end of log.txt may have the error", run.reason);
        add("start the same command again to go on from the newest checkpoint", why, "docs/resume.md");
    }
    if let Some(norm) = summary.max_grad_norm.filter(|norm| *norm > LARGE_NORM) {
        let why = format!("a gradient norm of {}", decimal(norm));
        add("lower train.lr or lengthen train.warmup", why, "docs/optimizers.md");
    }
    if summary.skipped > 0 {
        let why = format!("{} steps had gradients that were not finite", summary.skipped);
        add("look at the loss scale and at the data of these steps", why, "docs/optimizers.md");
    }
    if let Some(spike) = summary.events.iter().find(|event| event.kind == "spike") {
        let why = format!("step {}: {}", spike.step, spike.text);
        add("set train.divergence.patience, and look at the samples of the step", why, "docs/settings.md");
    }
    if let (Some(last), Some(most)) = (summary.tokens_per_s, summary.max_tokens_per_s)
        && last < SLOWER * most
    {
        let why = format!("{} tokens per second at the end, {} at most", decimal(last), decimal(most));
        add("look for other programs on the machine, and at --profile", why, "docs/training-step.md");
    }
    let of = |name: &str| summary.phases.get(name).copied().unwrap_or(0.0);
    let step = of("step");
    if step > 0.0 && of("data") > WAITING * step {
        let why = format!("{:.1} % of the steps waited for samples", 100.0 * of("data") / step);
        add("give the loader more threads, or pretokenise the data", why, "docs/pretraining.md");
    }
    if step > 0.0 && of("save") > SAVING * step {
        let why = format!("{:.1} s of saving beside {:.1} s of steps", of("save"), step);
        add("save less often: checkpoint.minutes, checkpoint.every", why, "docs/resume.md");
    }
    let eval_loss = summary.last_eval.as_ref().and_then(|eval| eval.metrics.get("loss"));
    if let (Some(eval), Some(train)) = (eval_loss, summary.mean_loss)
        && train > 0.0
        && *eval > GAP * train
    {
        let why = format!("evaluation loss {}, training loss {}", decimal(*eval), decimal(train));
        add("train for fewer epochs, or with more data or dropout", why, "docs/recipes.md");
    }
    rows
}
