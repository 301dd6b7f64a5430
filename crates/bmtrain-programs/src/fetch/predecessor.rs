//! Models that ModelCenter's server alone has: `cpm1-large` and `cpm2-large`, into ModelCenter's cache.
//!
//! The server has no list of files and no revisions: each file of a directory has a fixed name, and tokenizers' files
//! may be missing. It gives the CRC-64 of every file, which is compared with what arrives; a file without one is
//! refused.

use super::address::shown;
use super::contents::is_whole;
use super::hub::{Hub, Named};
use super::place::{create_directories, refused, sync_directory};
use super::store::{download, lock};
use super::{Options, Request, ServerLayout};
use model_center_base::{Error, Result};
use model_center_formats::pretrained::ModelCaches;
use std::fs;
use std::path::{Path, PathBuf};

/// ModelCenter's server.
const ENDPOINT: &str = "https://openbmb.oss-cn-hongkong.aliyuncs.com";
/// Models that it alone has.
const MODELS: [&str; 2] = ["cpm1-large", "cpm2-large"];
/// The longest of all files but weights.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// Files of tokenizers; a model has some of them.
const TOKENIZER: [&str; 4] = ["vocab.txt", "vocab.json", "vocab.model", "tokenizer_config.json"];

/// Whether a model comes from there.
pub(super) fn has(name: &str) -> bool {
    MODELS.contains(&name)
}

/// Request of the options to ModelCenter's server. The token of the hub is not for it.
pub(super) fn request(options: &Options, places: &ModelCaches) -> Result<Request> {
    if options.revision != "main" {
        let reason = "ModelCenter's server has no revisions";
        return Err(Error::argument("--revision", reason, "leave it out"));
    }
    let cache = places
        .model_center
        .clone()
        .ok_or_else(|| Error::argument("HOME", "there is no cache to write to: HOME is not set", "set HOME"))?;
    let endpoint = options.endpoint.clone().unwrap_or_else(|| ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    let own = super::request_for(options, places)?;
    Ok(Request { cache, endpoint, token: None, layout: ServerLayout::ModelCenter, ..own })
}

/// Fetch a model into the cache and return its directory. Weights come last: without them it is not a model.
pub fn fetch(request: &Request) -> Result<PathBuf> {
    let hub = Hub::new(request)?;
    let directory = create_directories(&request.cache, Path::new(request.id.as_str()))?;
    let _lock = lock(&directory.join(".fetch.lock"), &directory.join("pytorch_model.pt.incomplete"), "the model")?;
    take(&hub, &directory, "config.json", MAX_TEXT_BYTES, false)?;
    let mut found = 0;
    for name in TOKENIZER {
        found += usize::from(take(&hub, &directory, name, MAX_TEXT_BYTES, true)?);
    }
    if found == 0 {
        let reason = format!("the server has no vocabulary of {}", request.id);
        return Err(Error::model(shown(&request.endpoint), reason, "check --endpoint"));
    }
    take(&hub, &directory, "pytorch_model.pt", u64::MAX, false)?;
    Ok(directory)
}

/// Fetch one file unless it is there; whether the server has it.
fn take(hub: &Hub<'_>, directory: &Path, name: &str, limit: u64, may_lack: bool) -> Result<bool> {
    let Some(about) = hub.about_if_there("", name, limit, may_lack)? else { return Ok(false) };
    if about.named() == Named::Opaque {
        let reason = format!("the server gives no checksum of {name}, so that what arrives cannot be checked");
        return Err(Error::model(shown(&hub.request.endpoint), reason, "check --endpoint"));
    }
    let (path, partial) = (directory.join(name), directory.join(format!("{name}.incomplete")));
    if !is_whole(&path, &about)? {
        download(hub, "", name, &about, &partial)?;
        fs::rename(&partial, &path).map_err(|e| refused(&path, e))?;
        sync_directory(directory)?;
    }
    Ok(true)
}
