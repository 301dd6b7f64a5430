//! Times greedy decoding with a KV cache: see [`bmtrain_examples::bench::decode`].

use anyhow::Result;
use bmtrain_examples::bench::decode::{Options, run};
use bmtrain_examples::program;

fn main() -> Result<()> {
    run(&program::parse::<Options>())
}
