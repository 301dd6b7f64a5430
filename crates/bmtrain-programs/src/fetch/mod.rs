//! The fetch program: a model's name in; its configuration, tokenizer and weights in the hub's cache out.
//!
//! [`hub`] speaks with the server, over [`ask`], [`transfer`] and [`address`]; [`choose`] picks files; [`store`] writes
//! the cache, with [`contents`] and [`place`]; [`predecessor`] fetches from ModelCenter's server, without a list. Cut
//! off at any moment, the same command continues where it was; several of them may run beside each other. Neither the
//! server nor what is in the cache is trusted: docs/pretrained.md lists what is checked.

mod address;
mod ask;
mod choose;
mod contents;
mod crc64;
mod hub;
mod place;
mod predecessor;
mod store;
mod transfer;

use crate::cli::places::model_places;
use crate::cli::terminal;
use clap::Parser;
use hub::Hub;
use model_center_base::file::{printable, read_text};
use model_center_base::{Error, Result};
use model_center_formats::pretrained::{
    CachedModel, ModelCaches, Pretrained, RepoId, Revision, hub_names, unavailable_family,
};
use model_center_formats::shard_index::shard_names;
use model_center_recipe::run::ExitStatus;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::Store;
use ureq::Proxy;
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// The hub, unless the user names another server of the same kind.
const ENDPOINT: &str = "https://huggingface.co";
/// The longest file of certificates; an operating system's has 250 kB.
const MAX_CERTIFICATE_BYTES: u64 = 16 << 20;

/// Fetch a model from a hub into the cache of Hugging Face's libraries: configuration, tokenizer, and weights in
/// safetensors, or as a pickle if there are no others. cpm1-large and cpm2-large come from ModelCenter's server into
/// its cache. What is there already is kept; a download that was cut off goes on.
///
/// HF_TOKEN is for models that are not public; HF_HOME or HF_HUB_CACHE set the cache's path; SSL_CERT_FILE names
/// certificates to trust instead of the built-in ones.
///
/// Example: bmtrain fetch google-bert/bert-base-uncased
#[derive(Debug, Clone, Parser)]
#[command(name = "fetch", version)]
pub struct Options {
    /// The hub's name of the model, or one of ModelCenter's identifiers.
    #[arg(value_name = "ORG/NAME")]
    pub model: String,
    /// Branch, tag or whole commit.
    #[arg(long, value_name = "REVISION", default_value = "main")]
    pub revision: String,
    /// The server; by default the one in HF_ENDPOINT, else Hugging Face's.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
}

/// Files to fetch, their server and their destination.
pub struct Request {
    /// The model.
    pub id: RepoId,
    /// Branch, tag or commit.
    pub revision: Revision,
    /// The directory that holds `models--org--name`.
    pub cache: PathBuf,
    /// Address of the server, without a slash at the end.
    pub endpoint: String,
    /// The user's token.
    pub token: Option<String>,
    /// The proxy.
    pub proxy: Option<Proxy>,
    /// The trusted certificate authorities.
    pub roots: RootCerts,
    /// Pause before the first of the further attempts; doubled each time.
    pub pause: Duration,
    /// Layout of the server's file addresses.
    pub layout: ServerLayout,
    /// The longest wait for a server: to be connected, to be answered, and for the least part of an answer that is
    /// worth waiting for.
    pub patience: Duration,
}

/// Addresses of a model's files on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerLayout {
    /// As Hugging Face's hub: with revisions and a list of files.
    #[default]
    Hub,
    /// As ModelCenter's server: one directory for each identifier.
    ModelCenter,
}

pub use predecessor::fetch as fetch_from_model_center;

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    let places = model_places();
    if predecessor::has(&options.model) {
        let request = predecessor::request(options, &places)?;
        let found = predecessor::fetch(&request)?;
        terminal::print(&found.display().to_string())?;
        return Ok(ExitStatus::Done);
    }
    let request = request(options, &places)?;
    let commit = fetch(&request)?;
    // The other programs must find it, and whole.
    let found = Pretrained::resolve(request.id.as_str(), Some(&commit), &places)?;
    terminal::print(&found.display().to_string())?;
    Ok(ExitStatus::Done)
}

fn request(options: &Options, places: &ModelCaches) -> Result<Request> {
    let request = request_for(options, places)?;
    let variable = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    let endpoint = options.endpoint.clone().or_else(|| variable("HF_ENDPOINT"));
    let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned()).trim_end_matches('/').to_owned();
    Ok(Request { endpoint, ..request })
}

/// Request of the options, of no server yet.
fn request_for(options: &Options, places: &ModelCaches) -> Result<Request> {
    let name = printable(&options.model, 120);
    if places.offline {
        let reason = "HF_HUB_OFFLINE is set, which forbids to use the network";
        return Err(Error::argument("HF_HUB_OFFLINE", reason, "unset it, or put the model's directory there by hand"));
    }
    if let Some(family) = unavailable_family(&options.model) {
        let reason = format!("the family {family} is not available, so that the model could not be opened");
        return Err(Error::argument(name, reason, "name a model of a family that `bmtrain finetune --help` lists"));
    }
    let id = match hub_names(&options.model) {
        None => RepoId::parse(&options.model)
            .map_err(|why| Error::argument(name, format!("the name {why}"), "write it as the hub does: org/name"))?,
        Some(_) if predecessor::has(&options.model) => RepoId::parse(&options.model)
            .map_err(|why| Error::argument(name, format!("the name {why}"), "give one of ModelCenter's identifiers"))?,
        Some(names) => names.into_iter().next().ok_or_else(|| {
            Error::argument(name, "the hub has no such model", "put its directory into ModelCenter's cache by hand")
        })?,
    };
    let revision = Revision::parse(&options.revision).map_err(|why| {
        let place = format!("--revision {}", printable(&options.revision, 80));
        Error::argument(place, format!("the revision {why}"), "give a branch, a tag or a whole commit")
    })?;
    let cache = places.hub.clone().ok_or_else(|| {
        Error::argument("HF_HOME", "there is no cache to write to: neither HF_HOME nor HOME is set", "set HF_HOME")
    })?;
    let variable = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    Ok(Request {
        id,
        revision,
        cache,
        endpoint: String::new(),
        token: variable("HF_TOKEN").map(|token| token.trim().to_owned()),
        proxy: Proxy::try_from_env(),
        roots: variable("SSL_CERT_FILE").map_or(Ok(RootCerts::WebPki), |path| roots(Path::new(&path)))?,
        pause: Duration::from_secs(1),
        layout: ServerLayout::Hub,
        patience: Duration::from_secs(60),
    })
}

fn roots(path: &Path) -> Result<RootCerts> {
    let text = read_text(path, MAX_CERTIFICATE_BYTES)?;
    let items = parse_pem(text.as_bytes()).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = items.collect();
    if certificates.is_empty() {
        let reason = "SSL_CERT_FILE names a file without certificates";
        let fix = "name a file of certificates in PEM, or unset it";
        return Err(Error::argument(path.display().to_string(), reason, fix));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Fetch a model and return its commit.
///
/// The reference of the revision is written last: until then, readers find the earlier one.
pub fn fetch(request: &Request) -> Result<String> {
    let hub = Hub::new(request)?;
    let listing = hub.listing()?;
    let model = CachedModel::new(&request.cache, &request.id);
    let store = Store::new(&request.cache, &model, &listing.commit);
    let chosen = choose::choose(&request.id, &listing.files)?;
    for name in &chosen.files {
        store.take(&hub, name, choose::longest(name))?;
    }
    if let Some(index) = chosen.index {
        store.take(&hub, index, choose::longest(index))?;
        let listed = shard_names(&store.snapshot(), index)?;
        for shard in choose::shards(&request.id, &chosen, listed, &listing.files)? {
            store.take(&hub, &shard, u64::MAX)?;
        }
    }
    if chosen.are_pickles {
        terminal::note(
            "warning: the weights are pickles, which run code when they are opened in Python; there are no others",
        );
    }
    if !request.revision.is_commit() {
        store.refer(&request.revision)?;
    }
    Ok(listing.commit)
}
