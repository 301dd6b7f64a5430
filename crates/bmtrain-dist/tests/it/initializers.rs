//! Initializers of one's own: the same values however a parameter is cut over ranks.

use crate::ranks::on_ranks;
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{DType, Device};
use bmtrain_dist::param::{BuilderOptions, Init, InitElements, Split, TensorGroup};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Builder, Mesh};
use std::sync::Arc;

/// Ones on the diagonal, and elsewhere a number of name, seed and index.
fn near_identity(of: InitElements<'_>, values: &mut [f32]) {
    let columns = of.shape.last();
    for (at, value) in values.iter_mut().enumerate() {
        let index = of.first + at;
        let is_diagonal = index / columns == index % columns;
        *value = if is_diagonal { 1.0 } else { (of.seed as usize + of.name.len()) as f32 + index as f32 / 1024.0 };
    }
}

#[test]
fn an_initializer_of_ones_own_gives_the_same_values_on_any_layout() {
    let [rows, columns] = [12, 300];
    let expected: Vec<f32> = {
        let value = |index: usize| match index / columns == index % columns {
            true => 1.0,
            false => (3 + "layer.weight".len()) as f32 + index as f32 / 1024.0,
        };
        (0..rows * columns).map(value).collect()
    };
    let read = |ranks: Arc<dyn Communicator>, tensor: bool, level: ZeroLevel, axis: usize| {
        let device = Device::cpu(1).unwrap();
        let (rank, size) = (ranks.rank(), ranks.size());
        let options = BuilderOptions { seed: 3, dtype: DType::F32, ..BuilderOptions::default() };
        let options = match tensor {
            true => {
                let mesh = Mesh::new(rank, size, 1, size).unwrap();
                BuilderOptions { mesh, tensor: TensorGroup { ranks, ..TensorGroup::default() }, ..options }
            }
            false => {
                let sharding = Sharding { ranks, level, sum: GradientSum::Fast, prefetch: true };
                BuilderOptions { sharding, ..options }
            }
        };
        let b = Builder::new(&device, options);
        let split = if tensor { Split::even(axis, [rows, columns][axis]) } else { Split::Replicated };
        let param = b.at("layer").param("weight", [rows, columns], Init::function(near_identity), split, true).unwrap();
        let runs = param.runs_of(&(0..param.local_shape().elements()));
        (runs, param.read().unwrap())
    };
    assert_eq!(read(Arc::new(Solo), false, ZeroLevel::Zero, 0).1, expected);
    for level in [ZeroLevel::One, ZeroLevel::Three] {
        for (_, got) in on_ranks(2, Default::default(), |rank| read(Arc::new(rank), false, level, 0)) {
            assert_eq!(got, expected, "{level:?}");
        }
    }
    for axis in [0, 1] {
        for (runs, got) in on_ranks(4, Default::default(), |rank| read(Arc::new(rank), true, ZeroLevel::Zero, axis)) {
            for (whole, part, len) in runs {
                assert_eq!(got[part..part + len], expected[whole..whole + len], "axis {axis}");
            }
        }
    }
}
