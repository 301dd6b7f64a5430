//! Generation by ranks that shard parameters.

use super::{generate, open, sampled};
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::generate::{BeamOptions, GenerateOptions, Generator, Method};
use std::sync::Arc;

#[test]
fn ranks_under_zero_3_write_what_one_does_however_many_prompts_each_has() {
    let methods =
        [Method::Greedy, sampled(5).method, Method::Beams(BeamOptions { beams: 3, best: 2, ..BeamOptions::DEFAULT })];
    let prompts = [vec![5, 6, 7], vec![20, 8], vec![11, 12, 13, 14]];
    for directory in ["gpt2_a/lm", "bloom_a/lm", "t5_a/lm"] {
        for method in methods {
            let options = GenerateOptions {
                method,
                max_new_tokens: 7,
                end_tokens: vec![9, 10, 30],
                ..GenerateOptions::default()
            };
            let device = Device::cpu(1).unwrap();
            let one = generate(&device, &*open(&device, directory, Sharding::solo()), options.clone(), &prompts);
            let group = HostGroup::threads(3, HostOptions::default()).unwrap();
            // Two prompts, one, and none.
            let shares = [0..2, 2..3, 3..3];
            std::thread::scope(|scope| {
                for (rank, share) in group.into_iter().zip(shares) {
                    let (one, options, prompts) = (&one, options.clone(), &prompts);
                    scope.spawn(move || {
                        let device = Device::cpu(1).unwrap();
                        let ranks: Arc<dyn Communicator> = Arc::new(rank);
                        let (sum, level) = (GradientSum::Fast, ZeroLevel::Three);
                        let sharding = Sharding { ranks: ranks.clone(), level, sum, prefetch: true };
                        let model = open(&device, directory, sharding);
                        let generator = Generator::new(&*model, None, options).unwrap().on_ranks(ranks);
                        let mut cx = Ctx::inference(&device);
                        let first = share.start as u64;
                        let own = generator.generate(&prompts[share.clone()], first, &mut cx, &mut |_| Ok(())).unwrap();
                        for (ours, theirs) in own.iter().flatten().zip(one[share].iter().flatten()) {
                            assert_eq!(ours.tokens, theirs.tokens, "{directory} {method:?}");
                            // Products of other heights add up in another order.
                            let apart = ours.score.unwrap_or(0.0) - theirs.score.unwrap_or(0.0);
                            assert!(apart.abs() < 1e-5);
                        }
                    });
                }
            });
        }
    }
}
