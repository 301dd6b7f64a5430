//! `[device]`: what a run is executed on.

use crate::recipe::engine::kinds::{as_integer, quote};
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use crate::recipe::engine::table::settings;
use bmtrain_core::DeviceChoice;
use bmtrain_core::cpu::{Pinning, Processors};

settings! {
    /// `[device]`: what it runs on.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DeviceSettings in "device", of_rank (r) {
        /// Device of a rank; `auto` takes a CUDA device if there is one.
        pub name: DeviceChoice = device(), "0.1";
        /// Threads of the ranks of a host together; `auto` is one for each physical core.
        pub threads: Threads = threads(), "0.1";
        /// What threads are pinned to: the NUMA nodes of the rank's cores, a core, nothing; `docs/devices.md`.
        pub pin_threads: Pinning = choice(&Pinning::ALL.map(|pinning| (pinning.name(), pinning)), Pinning::Nodes),
            "0.2";
    }
}

/// Number of threads that the ranks of a host have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One for each physical core available to this process, see [`Processors::default_threads`].
    Auto,
    /// This number.
    Count(usize),
}

impl Threads {
    /// The number of threads on this machine.
    pub fn count(self) -> usize {
        match self {
            Threads::Auto => Processors::of_this_process().default_threads(),
            Threads::Count(count) => count,
        }
    }
}

impl Reader {
    fn device(&mut self, key: &'static str) -> DeviceChoice {
        self.shape(key, Shape::Pattern("^(auto|cpu|cuda(:[0-9]+)?)$".to_owned()));
        self.read(Spec {
            key,
            textual: true,
            wanted: "\"auto\", \"cpu\", \"cuda\", or \"cuda:0\" for the first CUDA device".into(),
            example: quote("cpu"),
            otherwise: Otherwise::Default(DeviceChoice::Auto),
            read: &|value| match value {
                Value::Text(text) => text.parse().ok(),
                _ => None,
            },
            render: &|choice: &DeviceChoice| quote(&choice.to_string()),
        })
        .unwrap_or_default()
    }

    fn threads(&mut self, key: &'static str) -> Threads {
        let auto = Shape::Choice(vec!["auto".into()]);
        self.shape(key, Shape::Either(vec![auto, Shape::Integer(1, Some(1024))]));
        self.read(Spec {
            key,
            textual: false,
            wanted: "\"auto\" or a whole number from 1 to 1024".into(),
            example: "2".into(),
            otherwise: Otherwise::Default(Threads::Auto),
            read: &|value| match value {
                Value::Text(text) if text == "auto" => Some(Threads::Auto),
                _ => as_integer(value).filter(|n| (1..=1024).contains(n)).map(|n| Threads::Count(n as usize)),
            },
            render: &|threads| match threads {
                Threads::Auto => quote("auto"),
                Threads::Count(count) => count.to_string(),
            },
        })
        .unwrap_or(Threads::Auto)
    }
}
