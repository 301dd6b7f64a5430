//! The values of a DeepSpeed configuration that a recipe has keys for.

use super::Config;
use crate::import::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_recipe::key;

/// Adds the lines of a configuration; `has_command` tells whether the sheet has the lines of a command.
pub(super) fn translate(config: &Config<'_>, has_command: bool, sheet: &mut Sheet) -> Result<()> {
    precision(config, sheet)?;
    optimizer(config, sheet)?;
    scheduler(config, sheet)?;
    clipping(config, has_command, sheet)?;
    zero(config, sheet)?;
    recompute(config, has_command, sheet)?;
    layout(config, sheet)?;
    if let Some(every) = config.whole("steps_per_print")? {
        sheet.whole(key!(log.every), every.max(1), config.shown("steps_per_print"));
    }
    if let Some(seed) = config.whole("seed")? {
        sheet.whole(key!(train.seed), seed, config.shown("seed"));
    }
    Ok(())
}

fn precision(config: &Config<'_>, sheet: &mut Sheet) -> Result<()> {
    let on = |path: &str| config.flag(path).map(|flag| flag == Some(true));
    let half = on("fp16.enabled")?;
    let wide = if on("bf16.enabled")? { Some("bf16.enabled") } else { None };
    let wide = wide.or(if on("bfloat16.enabled")? { Some("bfloat16.enabled") } else { None });
    for path in ["amp.enabled", "torch_autocast.enabled"] {
        if on(path)? {
            let reason = "casts of single operations are not available";
            let fix = "use bf16 or fp16 instead, or pass it over with --leave";
            return Err(Error::argument(format!("{}, {path}", config.place), reason, fix));
        }
    }
    match (half, wide) {
        (true, Some(_)) => {
            return Err(Error::argument(config.place, "fp16 and bf16 are both enabled", "enable one"));
        }
        (true, None) => sheet.text(key!(model.dtype), "f16", "fp16.enabled"),
        (false, Some(from)) => sheet.text(key!(model.dtype), "bf16", from),
        (false, None) if config.get("fp16.enabled").is_some() || config.get("bf16.enabled").is_some() => {
            sheet.text(key!(model.dtype), "f32", "neither fp16 nor bf16 is enabled");
        }
        (false, None) => {}
    }
    let accumulated = ["data_types.grad_accum_dtype", "communication_data_type"];
    let mut from: Vec<String> = Vec::new();
    for path in accumulated {
        let Some(dtype) = config.text(path)? else { continue };
        from.push(config.shown(path));
        let value = if ["fp32", "float32"].contains(&dtype) { "f32" } else { "model" };
        sheet.text(key!(train.gradient_dtype), value, from.join(", "));
    }
    if half {
        loss_scale(config, sheet)?;
    } else {
        scale_keys().iter().for_each(|key| sheet.remove(key));
    }
    Ok(())
}

fn scale_keys() -> [&'static str; 5] {
    [
        key!(train.loss_scale),
        key!(train.loss_scale_start),
        key!(train.loss_scale_window),
        key!(train.loss_scale_hysteresis),
        key!(train.loss_scale_floor),
    ]
}

fn loss_scale(config: &Config<'_>, sheet: &mut Sheet) -> Result<()> {
    scale_keys().iter().for_each(|key| sheet.remove(key));
    // 0 is dynamic.
    if let Some(scale) = config.number("fp16.loss_scale")?.filter(|scale| *scale != 0.0) {
        let place = format!("{}, fp16.loss_scale", config.place);
        return sheet.static_loss_scale(scale, &place, config.shown("fp16.loss_scale"));
    }
    sheet.text(key!(train.loss_scale), "deepspeed", "fp16.loss_scale 0: dynamic");
    if let Some(power) = config.whole("fp16.initial_scale_power")? {
        let place = format!("{}, fp16.initial_scale_power", config.place);
        let from = config.shown("fp16.initial_scale_power");
        sheet.power(key!(train.loss_scale_start), 2f64.powi(power.min(1000) as i32), &place, from)?;
    }
    if let Some(window) = config.whole("fp16.loss_scale_window")? {
        sheet.whole(key!(train.loss_scale_window), window, config.shown("fp16.loss_scale_window"));
    }
    if let Some(hysteresis) = config.whole("fp16.hysteresis")? {
        sheet.whole(key!(train.loss_scale_hysteresis), hysteresis, config.shown("fp16.hysteresis"));
    }
    if let Some(floor) = config.number("fp16.min_loss_scale")? {
        let place = format!("{}, fp16.min_loss_scale", config.place);
        sheet.power(key!(train.loss_scale_floor), floor, &place, config.shown("fp16.min_loss_scale"))?;
    }
    if config.flag("fp16.consecutive_hysteresis")? == Some(true) {
        let why = "overflows that are forgiven are counted anew when the scale grows";
        sheet.note(NoteKind::Differs, config.shown("fp16.consecutive_hysteresis"), why);
    }
    Ok(())
}

fn optimizer(config: &Config<'_>, sheet: &mut Sheet) -> Result<()> {
    let Some(kind) = config.text("optimizer.type")? else { return Ok(()) };
    let from = config.shown("optimizer.type");
    let plain = kind.to_ascii_lowercase();
    let is_decoupled = match plain.as_str() {
        "adamw" => true,
        // DeepSpeed's Adam is AdamW unless adam_w_mode is false.
        "adam" | "fusedadam" | "deepspeedcpuadam" | "cpuadam" => {
            config.flag("optimizer.params.adam_w_mode")?.unwrap_or(true)
        }
        _ => {
            let reason = format!("import reads the settings of Adam alone, not of {kind}");
            let place = format!("{}, optimizer.type", config.place);
            return Err(Error::argument(place, reason, "use Adam or AdamW"));
        }
    };
    sheet.flag(key!(train.decoupled), is_decoupled, from.clone());
    if let Some(lr) = config.number("optimizer.params.lr")? {
        sheet.number(key!(train.lr), lr, config.shown("optimizer.params.lr"));
    }
    match config.get("optimizer.params.betas") {
        Some(value) => {
            let betas: Option<Vec<f64>> =
                value.as_array().and_then(|list| list.iter().map(serde_json::Value::as_f64).collect());
            let Some([first, second]) = betas.as_deref().and_then(|list| <[f64; 2]>::try_from(list).ok()) else {
                return Err(config.wrong("optimizer.params.betas", value, "a list of two numbers"));
            };
            sheet.raw(key!(train.betas), format!("[{first:?}, {second:?}]"), config.shown("optimizer.params.betas"));
        }
        None if sheet.get(key!(train.betas)).is_none() => {
            sheet.raw(key!(train.betas), "[0.9, 0.999]", "DeepSpeed's default")
        }
        None => {}
    }
    if let Some(eps) = config.number("optimizer.params.eps")? {
        sheet.number(key!(train.eps), eps, config.shown("optimizer.params.eps"));
    }
    let default = if plain == "adamw" { 0.01 } else { 0.0 };
    match config.number("optimizer.params.weight_decay")? {
        Some(decay) => sheet.number(key!(train.weight_decay), decay, config.shown("optimizer.params.weight_decay")),
        None if config.get("optimizer.params").is_some() && sheet.get(key!(train.weight_decay)).is_none() => {
            sheet.number(key!(train.weight_decay), default, format!("{from}, its default"));
        }
        None => {}
    }
    if config.flag("optimizer.params.bias_correction")? == Some(false) {
        let why = "Adam corrects the bias of its first steps";
        sheet.note(NoteKind::Differs, config.shown("optimizer.params.bias_correction"), why);
    }
    Ok(())
}

fn scheduler(config: &Config<'_>, sheet: &mut Sheet) -> Result<()> {
    let Some(kind) = config.text("scheduler.type")? else { return Ok(()) };
    let from = config.shown("scheduler.type");
    let param = |name: &str| format!("scheduler.params.{name}");
    let schedule = match kind {
        "WarmupLR" => "constant",
        "WarmupDecayLR" => "linear",
        "WarmupCosineLR" => "cosine-with-min-lr",
        "LRRangeTest" => "range-test",
        other => {
            let reason = format!("the schedule {other} has no counterpart");
            let fix = "use WarmupLR, WarmupDecayLR or WarmupCosineLR";
            return Err(Error::argument(format!("{}, scheduler.type", config.place), reason, fix));
        }
    };
    [key!(train.gamma), key!(train.final_lr_ratio), key!(train.decay_steps), key!(train.decay_endpoint)]
        .iter()
        .for_each(|key| sheet.remove(key));
    sheet.text(key!(train.schedule), schedule, from.clone());
    if kind == "LRRangeTest" {
        let lr = config.number(&param("lr_range_test_min_lr"))?.unwrap_or(1e-3);
        sheet.number(key!(train.lr), lr, param("lr_range_test_min_lr"));
        sheet.whole(key!(train.warmup), 0, from.clone());
        sheet.text(key!(save.which), "none", "a range test ends at a rate that is too high");
        let why = "the learning rate grows by the same factor at each step, up to train.range_test_lr";
        sheet.note(NoteKind::Differs, from, why);
        return Ok(());
    }
    let warmup = config.whole(&param("warmup_num_steps"))?;
    match warmup {
        Some(steps) => sheet.whole(key!(train.warmup), steps, config.shown(&param("warmup_num_steps"))),
        None if config.get("scheduler.params").is_some() => {
            let is_auto = config
                .map
                .get("scheduler")
                .and_then(|scheduler| scheduler.get("params")?.get("warmup_num_steps"))
                .is_some();
            if !is_auto {
                sheet.whole(key!(train.warmup), 1000, "DeepSpeed's default");
            }
        }
        None => {}
    }
    if let Some(lr) = config.number(&param("warmup_max_lr"))? {
        sheet.number(key!(train.lr), lr, config.shown(&param("warmup_max_lr")));
    }
    if let Some(steps) = config.whole(&param("total_num_steps"))? {
        sheet.whole(key!(train.steps), steps, config.shown(&param("total_num_steps")));
    }
    if kind == "WarmupCosineLR" {
        let (share, from) = match config.number(&param("cos_min_ratio"))? {
            Some(share) => (share, config.shown(&param("cos_min_ratio"))),
            None => (1e-4, format!("{}, default 0.0001", param("cos_min_ratio"))),
        };
        sheet.number(key!(train.final_lr_ratio), share, from);
        sheet.note(NoteKind::Differs, "WarmupCosineLR", "its cosine is a step further at each step");
    }
    let least = ["warmup_min_lr", "warmup_min_ratio"];
    for name in least {
        if config.number(&param(name))?.is_some_and(|value| value != 0.0) {
            let why = "the warm-up begins at 0";
            sheet.note(NoteKind::Differs, config.shown(&param(name)), why);
        }
    }
    // "log" is the default.
    let form = config.text(&param("warmup_type"))?.unwrap_or("log").to_owned();
    if form != "linear" && warmup != Some(0) {
        sheet.note(NoteKind::Differs, format!("warmup_type {form}"), "the warm-up is linear");
    }
    Ok(())
}

fn clipping(config: &Config<'_>, has_command: bool, sheet: &mut Sheet) -> Result<()> {
    if config.map.get("gradient_clipping").is_some_and(|value| value.as_str() == Some("auto")) {
        return Ok(());
    }
    let (norm, from) = match config.number("gradient_clipping")? {
        Some(norm) => (norm, config.shown("gradient_clipping")),
        None => (0.0, "no gradient_clipping: DeepSpeed does not clip".to_owned()),
    };
    let from = match sheet.get(key!(train.clip_norm)) {
        Some(other) if has_command => format!("{from}, which DeepSpeed prefers to --clip-grad {other}"),
        _ => from,
    };
    sheet.remove(key!(train.clip_norm));
    sheet.remove(key!(train.clip_kind));
    sheet.clip(norm, from);
    Ok(())
}

fn zero(config: &Config<'_>, sheet: &mut Sheet) -> Result<()> {
    // In the first versions the table was a truth value, for stage 1.
    let (stage, from) = match config.get("zero_optimization") {
        Some(value) if value.is_boolean() => {
            (u64::from(value.as_bool() == Some(true)), config.shown("zero_optimization"))
        }
        Some(_) => {
            let stage = config.whole("zero_optimization.stage")?.unwrap_or(0);
            (stage, config.shown("zero_optimization.stage"))
        }
        None => (0, "no zero_optimization".to_owned()),
    };
    if stage > 3 {
        let reason = format!("stage {stage} is none of 0 to 3");
        let place = format!("{}, zero_optimization.stage", config.place);
        return Err(Error::argument(place, reason, "give a stage from 0 to 3"));
    }
    sheet.whole(key!(parallel.zero), stage, from);
    let device = |path: &str| -> Result<bool> {
        match config.text(path)? {
            Some("cpu") => Ok(true),
            Some("none") | None => Ok(false),
            Some(other) => {
                let reason = format!("there is no offload to {other}");
                let fix = "use \"cpu\" or \"none\"";
                Err(Error::argument(format!("{}, {path}", config.place), reason, fix))
            }
        }
    };
    let is_on = |path: &str| config.flag(path).map(|flag| flag == Some(true));
    let optimizer = "zero_optimization.offload_optimizer.device";
    let (state, old) = (device(optimizer)?, is_on("zero_optimization.cpu_offload")?);
    if state || old {
        let from = if state { config.shown(optimizer) } else { "zero_optimization.cpu_offload".to_owned() };
        sheet.flag(key!(train.offload), true, from);
    }
    let parameters = "zero_optimization.offload_param.device";
    let (new, old) = (device(parameters)?, is_on("zero_optimization.cpu_offload_params")?);
    if (new || old) && stage == 3 {
        let from = if new { config.shown(parameters) } else { "zero_optimization.cpu_offload_params".to_owned() };
        sheet.flag(key!(train.offload_parameters), true, from.clone());
        if sheet.get(key!(train.offload)).is_none() {
            sheet.flag(key!(train.offload), true, from.clone());
            let why = "parameters in host memory are updated there, with the optimizer's state";
            sheet.note(NoteKind::Differs, from, why);
        }
    } else if new || old {
        let why = "parameters are whole on every rank below stage 3";
        sheet.note(NoteKind::Unused, config.shown(parameters), why);
    }
    Ok(())
}

fn recompute(config: &Config<'_>, has_command: bool, sheet: &mut Sheet) -> Result<()> {
    let sharded = config.flag("activation_checkpointing.partition_activations")? == Some(true);
    let host = config.flag("activation_checkpointing.cpu_checkpointing")? == Some(true);
    let number = config.whole("activation_checkpointing.number_checkpoints")?;
    let recomputes = sheet.get(key!(train.recompute)).is_some_and(|value| value != "\"attention\"");
    if config.get("activation_checkpointing").is_none() {
        return Ok(());
    }
    if !recomputes && has_command {
        let why = "the command recomputes no block (--checkpoint-activations)";
        sheet.note(NoteKind::Unused, "activation_checkpointing", why);
        return Ok(());
    }
    if !recomputes && (sharded || host) {
        sheet.text(key!(train.recompute), "blocks", "activation_checkpointing");
    }
    let has_ranks = sheet.has_several(key!(parallel.tensor)) && sheet.get(key!(parallel.sequence)).is_none();
    match (host, sharded) {
        (true, _) => sheet.text(key!(train.recompute_inputs), "host", "activation_checkpointing.cpu_checkpointing"),
        (false, true) if has_ranks => {
            let from = "activation_checkpointing.partition_activations";
            sheet.text(key!(train.recompute_inputs), "sharded", from);
        }
        (false, true) => {
            let why = "there is one tensor-parallel rank, --flags has to tell how many, or sequences are sharded";
            sheet.note(NoteKind::Unused, "activation_checkpointing.partition_activations", why);
        }
        (false, false) => {}
    }
    if number.is_some() {
        let shown = config.shown("activation_checkpointing.number_checkpoints");
        sheet.note(NoteKind::Unused, shown, "inputs of blocks take memory as they come");
    }
    Ok(())
}

fn layout(config: &Config<'_>, sheet: &mut Sheet) -> Result<()> {
    for path in ["tensor_parallel.autotp_size", "tensor_parallel.tp_size"] {
        if let Some(ranks) = config.whole(path)?.filter(|ranks| *ranks > 0) {
            sheet.whole(key!(parallel.tensor), ranks, config.shown(path));
        }
    }
    if let Some(stages) = config.get("pipeline.stages").and_then(serde_json::Value::as_u64).filter(|n| *n > 0) {
        sheet.whole(key!(parallel.pipeline), stages, config.shown("pipeline.stages"));
    }
    match config.text("pipeline.partition")? {
        None | Some("best") => {}
        Some(_) if !sheet.has_several(key!(parallel.pipeline)) => {
            sheet.note(NoteKind::Unused, config.shown("pipeline.partition"), "there is one pipeline stage");
        }
        Some(partition) => {
            let (value, is_same) = match partition {
                "parameters" => ("parameters", true),
                "uniform" => ("blocks", false),
                _ => ("blocks", partition.starts_with("type:")),
            };
            sheet.text("parallel.partition", value, config.shown("pipeline.partition"));
            if !is_same {
                let why = "stages have the same number of blocks, without counting other layers";
                sheet.note(NoteKind::Differs, config.shown("pipeline.partition"), why);
            }
        }
    }
    Ok(())
}
