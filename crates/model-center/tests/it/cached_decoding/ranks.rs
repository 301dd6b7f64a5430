//! Decoding with a KV cache by ranks that shard parameters.

use super::{directories, open, padded, prefixed, row, source};
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::model::{Batch, DecodingOptions};
use std::sync::Arc;

#[test]
fn two_ranks_under_zero_3_write_what_one_does() {
    let directories = directories().into_iter().filter(|directory| directory.ends_with("lm"));
    let with_prefix = ["llama_a/lm", "bloom_a/lm"];
    for (directory, tokens) in directories.flat_map(|directory| {
        let has_prefix = with_prefix.iter().any(|name| directory.ends_with(name));
        [Some(0), has_prefix.then_some(2)].into_iter().flatten().map(move |tokens| (directory.clone(), tokens))
    }) {
        let write = |device: &Device, sharding: Sharding| -> Vec<f32> {
            let model = match tokens {
                0 => open(device, &directory, sharding),
                _ => prefixed(device, &directory, tokens, sharding).unwrap(),
            };
            let source = source(&*model);
            let rows: Vec<Vec<i64>> = (0..3).map(|i| row(&*model, i, 4)).collect();
            let mut cx = Ctx::inference(device);
            let options = DecodingOptions { source: source.as_ref(), expected: 8 };
            let mut decoding = model.decoding(options, &mut cx).unwrap();
            decoding.extend(&padded(&rows), &mut cx).unwrap();
            let next = Batch { labels: None, ..Batch::next_tokens(1, vec![7, 8, 9], None) };
            decoding.extend(&next, &mut cx).unwrap().to_vec().unwrap()
        };
        let one = write(&Device::cpu(1).unwrap(), Sharding::solo());
        let group = HostGroup::threads(2, HostOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for rank in group {
                let (write, one) = (&write, &one);
                scope.spawn(move || {
                    let (ranks, level) = (Arc::new(rank), ZeroLevel::Three);
                    let sharding = Sharding { ranks, level, sum: GradientSum::Fast, prefetch: true };
                    assert!(&write(&Device::cpu(1).unwrap(), sharding) == one, "every bit of one rank");
                });
            }
        });
    }
}
