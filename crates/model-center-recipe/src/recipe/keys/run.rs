//! `[run]` and `[output]`: what a run is called, and where it writes.

use crate::recipe::engine::kinds::Expected;
use crate::recipe::engine::table::settings;
use std::path::PathBuf;

const NAME: Expected = Expected { what: "the name of the run in lists", example: "bert-lr3e-5" };
const DIRECTORY: Expected = Expected { what: "the path of the directory for this run", example: "runs/first" };

settings! {
    /// `[run]`: what the run is called where runs are listed.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RunSettings in "run", of_rank (r) {
        /// Name of the run in lists, pages and reports.
        pub name: Option<String> = optional_text("not set: the name of output.dir", NAME), "0.2";
        /// Texts by which runs are found together.
        pub tags: Vec<String> = texts("not set: none", "[\"bert\", \"ablation\"]"), "0.2";
    }
}

settings! {
    /// `[output]`: where it goes.
    #[derive(Debug, Clone, PartialEq)]
    pub struct OutputSettings in "output", uncounted (r) {
        /// Directory of the run.
        pub dir: PathBuf = required_path(DIRECTORY), "0.1";
    }
}
