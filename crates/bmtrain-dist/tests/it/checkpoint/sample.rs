//! A small training state of many shapes and dtypes, how ranks may cut it, and how it is saved and compared.

use bmtrain_core::DType;
use bmtrain_dist::Result;
use bmtrain_dist::checkpoint::simulated::MemoryDisk;
use bmtrain_dist::checkpoint::{Checkpoint, Committed, Digest, Facts, Kind, PieceSpec, Store, TensorPiece, Writer};
use serde_json::json;
use std::sync::Arc;

/// A small generator (splitmix64), so that every case has a number.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(count).collect()
    }
}

/// Division of a tensor's elements among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each tensor in equal runs, as far as it goes.
    Even,
    /// At places that have nothing to do with anything, in several runs for each rank.
    Ragged(u64),
    /// The last rank has everything.
    LastRank,
    /// Every rank has everything.
    Copies,
    /// Each rank has some columns of what has several axes, as tensor-parallel ranks do, cut again within a row as
    /// shards of data-parallel ranks are; the rest as `Even`.
    Columns,
}

/// Whole tensors and the free state.
#[derive(Debug, Clone)]
pub struct State {
    pub tensors: Vec<TensorPiece>,
    pub facts: Facts,
}

impl State {
    /// Different bits for every seed, the same names and shapes.
    pub fn new(seed: u64) -> State {
        let mut random = Random(seed);
        let mut tensors = Vec::new();
        let mut add = |name: &str, kind: Kind, dtype: DType, shape: &[u64]| {
            let spec = PieceSpec::whole(name, kind, dtype, shape);
            let bytes = random.bytes(spec.bytes().unwrap() as usize);
            tensors.push(TensorPiece { spec, bytes });
        };
        for (name, shape) in
            [("embed.weight", vec![31, 8]), ("layer.0.weight", vec![8, 3, 7]), ("layer.0.bias", vec![7])]
        {
            add(name, Kind::Parameter, DType::BF16, &shape);
            add(name, Kind::Master, DType::F32, &shape);
            add(name, Kind::MomentM, DType::F32, &shape);
            add(name, Kind::MomentV, DType::F32, &shape);
        }
        add("scalar", Kind::Parameter, DType::F32, &[]);
        add("half", Kind::Parameter, DType::F16, &[5]);
        add("nothing", Kind::Parameter, DType::F32, &[4, 0]);
        add("counts", Kind::Other("rows-seen".into()), DType::I64, &[3]);
        add("positions", Kind::Other("table".into()), DType::I32, &[2, 9]);
        add("mask", Kind::Other("frozen".into()), DType::U8, &[13]);
        let state =
            json!({"scaler": {"scale": 65536.0, "good": seed}, "data": {"epoch": 1, "index": 17 * seed}, "lr": 0.1});
        let facts = Facts {
            world: 0,
            layout: json!({"zero": 3}).as_object().unwrap().clone(),
            recipe: "recipe".into(),
            state: state.as_object().unwrap().clone(),
        };
        State { tensors, facts }
    }

    /// Pieces of `rank` of `world`.
    pub fn pieces(&self, rank: usize, world: usize, cut: Cut) -> Vec<TensorPiece> {
        self.tensors.iter().flat_map(|tensor| pieces_of(tensor, rank, world, cut)).collect()
    }

    /// Save as `world` ranks do; a save that fails is given up, as a program does.
    pub fn save(&self, store: &Store, step: u64, world: usize, cut: Cut) -> Result<Committed> {
        let writer = Writer::begin(store, step, &format!("id{world}"))?;
        let written: Result<Vec<_>> =
            (0..world).map(|rank| writer.write_shard(rank, &self.pieces(rank, world, cut))).collect();
        match written {
            Ok(records) => writer.commit(records, Facts { world: world as u64, ..self.facts.clone() }),
            Err(error) => {
                writer.abandon();
                Err(error)
            }
        }
    }

    /// The checkpoint holds exactly this.
    pub fn assert_in(&self, checkpoint: &Checkpoint) {
        assert_eq!(checkpoint.tensors().len(), self.tensors.len());
        for tensor in &self.tensors {
            let found = checkpoint.tensor(&tensor.spec.name, &tensor.spec.kind).unwrap();
            assert_eq!((found.dtype, &found.shape), (tensor.spec.dtype, &tensor.spec.shape));
            let bytes = checkpoint.read_range(&found.name, &found.kind, 0..found.elements).unwrap();
            assert_eq!(bytes, tensor.bytes, "{}", found.title());
        }
        assert_eq!(checkpoint.manifest().facts.state, self.facts.state);
    }

    /// The digest of this state at a step, by way of a disk in memory.
    pub fn digest(&self, step: u64) -> Digest {
        let store = Store::on(Arc::new(MemoryDisk::default()));
        let committed = self.save(&store, step, 1, Cut::Even).unwrap();
        store.verify(&committed.name).unwrap().digest().unwrap()
    }
}

/// Columns of a rank: rows of one piece, and where there are enough of them the row in which it is cut.
fn columns_of(tensor: &TensorPiece, rank: usize, world: usize) -> Vec<TensorPiece> {
    let (spec, size) = (&tensor.spec, tensor.spec.dtype.size());
    let row = *spec.shape.last().unwrap() as usize;
    let rows = spec.length as usize / row;
    let (first, end) = (row * rank / world, row * (rank + 1) / world);
    let width = end - first;
    let mut runs = vec![(first, width, rows)];
    if rows > 3 && width > 1 {
        let cut = first + row;
        runs = vec![(first, width, 1), (cut, 1, 1), (cut + 1, width - 1, 1), (first + 2 * row, width, rows - 2)];
    }
    let piece = |(start, length, runs): (usize, usize, usize)| {
        let stride = if runs > 1 { row } else { 0 };
        let run = |number: usize| (start + number * row) * size..(start + number * row + length) * size;
        TensorPiece {
            spec: spec.strided(start as u64, length as u64, runs as u64, stride as u64),
            bytes: (0..runs).flat_map(|number| tensor.bytes[run(number)].to_vec()).collect(),
        }
    };
    runs.into_iter().map(piece).collect()
}

fn pieces_of(tensor: &TensorPiece, rank: usize, world: usize, cut: Cut) -> Vec<TensorPiece> {
    let is_matrix = tensor.spec.shape.len() > 1 && tensor.spec.shape.last() >= Some(&(world as u64));
    if cut == Cut::Columns && world > 1 && is_matrix {
        return columns_of(tensor, rank, world);
    }
    let elements = tensor.spec.length as usize;
    let mut borders = vec![0, elements];
    let mut owner = vec![rank];
    match cut {
        Cut::Copies => {}
        Cut::LastRank => owner = vec![world - 1],
        Cut::Even | Cut::Columns => {
            borders = (0..=world).map(|r| (elements.div_ceil(world) * r).min(elements)).collect();
            owner = (0..world).collect();
        }
        Cut::Ragged(seed) => {
            let mut random = Random(seed ^ elements as u64);
            borders.extend((0..3 * world).map(|_| random.below(elements + 1)));
            borders.sort_unstable();
            owner = (1..borders.len()).map(|_| random.below(world)).collect();
        }
    }
    let runs = borders.windows(2).zip(owner).filter(|(run, owner)| {
        // Only the last rank reports an empty run of a tensor without elements.
        *owner == rank && (run[0] < run[1] || (elements == 0 && rank + 1 == world))
    });
    let size = tensor.spec.dtype.size();
    let mut pieces: Vec<TensorPiece> = runs
        .map(|(run, _)| TensorPiece {
            spec: tensor.spec.part(run[0] as u64, (run[1] - run[0]) as u64),
            bytes: tensor.bytes[run[0] * size..run[1] * size].to_vec(),
        })
        .collect();
    pieces.dedup_by_key(|piece| piece.spec.start);
    pieces
}

/// A store in memory with these steps, the state of each seeded by its number.
pub fn memory_with(steps: &[u64], world: usize) -> (MemoryDisk, Store) {
    memory_with_cut(steps, world, Cut::Even)
}

/// Checkpoints in memory with tensors that are divided in this way.
pub fn memory_with_cut(steps: &[u64], world: usize, cut: Cut) -> (MemoryDisk, Store) {
    let disk = MemoryDisk::default();
    let store = Store::on(Arc::new(disk.clone()));
    for &step in steps {
        State::new(step).save(&store, step, world, cut).unwrap();
    }
    (disk, store)
}

/// The step of the newest checkpoint that verifies, which must hold what was saved at that step.
pub fn newest_step(store: &Store) -> Option<u64> {
    let checkpoint = store.newest_verified().unwrap().checkpoint?;
    let step = checkpoint.manifest().step;
    State::new(step).assert_in(&checkpoint);
    Some(step)
}
