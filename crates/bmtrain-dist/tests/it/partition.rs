//! Division of ranks into groups, parameters over tensor-parallel ranks, and flat storages into shards.

use bmtrain_core::{DType, Shape};
use bmtrain_dist::mesh::{Mesh, RankGroup};
use bmtrain_dist::param::{SharedRange, Split, SplitPart};
use bmtrain_dist::shard::ShardLayout;
use std::collections::BTreeMap;

/// Every mesh of up to 24 ranks, as the places of all its ranks.
fn meshes() -> Vec<Vec<Mesh>> {
    let mut all = Vec::new();
    for world in 1..=24_usize {
        for pipeline in 1..=world {
            for tensor in 1..=world {
                if world.is_multiple_of(pipeline * tensor) {
                    let place = |rank| Mesh::new(rank, world, pipeline, tensor).unwrap();
                    all.push((0..world).map(place).collect());
                }
            }
        }
    }
    assert!(all.len() > 200, "only {} meshes were tried", all.len());
    all
}

#[test]
fn tensor_ranks_are_neighbours_and_stages_are_farthest_apart() {
    let places: Vec<_> = (0..8)
        .map(|rank| Mesh::new(rank, 8, 2, 2).unwrap())
        .map(|mesh| (mesh.stage(), mesh.data_rank(), mesh.tensor_rank()))
        .collect();
    let expected = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)];
    assert_eq!(places, expected);
}

#[test]
fn impossible_meshes_are_refused() {
    assert!(Mesh::new(0, 6, 2, 2).is_err());
    assert!(Mesh::new(4, 4, 1, 1).is_err());
    assert!(Mesh::new(0, 0, 1, 1).is_err());
    assert!(Mesh::new(0, 4, 0, 1).is_err());
    assert!(Mesh::new(0, 4, 1, 0).is_err());
    assert!(Mesh::new(0, 4, usize::MAX, 2).is_err());
    let message = Mesh::new(0, 6, 2, 2).unwrap_err().to_string();
    assert!(message.contains("6 ranks") && message.contains("2 pipeline stages x 2 tensor ranks"), "{message}");
}

#[test]
fn groups_of_each_kind_partition_the_world_into_equal_parts() {
    for ranks in meshes() {
        for kind in RankGroup::ALL {
            let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for mesh in &ranks {
                groups.entry(mesh.group(kind)).or_default().push(mesh.rank());
            }
            let (count, size) = (ranks[0].group_count(kind), ranks[0].group_size(kind));
            assert_eq!(groups.keys().copied().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            assert!(groups.values().all(|members| members.len() == size), "{:?} {kind:?}", ranks[0]);
            assert_eq!(count * size, ranks.len());
        }
    }
}

#[test]
fn members_of_a_group_agree_on_its_list_and_their_numbers_in_it() {
    for ranks in meshes() {
        for (mesh, kind) in ranks.iter().flat_map(|mesh| RankGroup::ALL.map(|kind| (mesh, kind))) {
            let members = mesh.group_ranks(kind);
            assert_eq!(members[mesh.group_rank(kind)], mesh.rank());
            assert!(members.is_sorted());
            for &member in &members {
                assert_eq!(ranks[member].group(kind), mesh.group(kind));
                assert_eq!(ranks[member].group_ranks(kind), members);
            }
        }
    }
}

#[test]
fn formulas_equal_an_enumerated_table() {
    for ranks in meshes() {
        let (pipeline, tensor) = (ranks[0].pipeline_size(), ranks[0].tensor_size());
        let data = ranks.len() / (pipeline * tensor);
        let sizes = [RankGroup::Zero, RankGroup::TensorZero].map(|kind| ranks[0].group_size(kind));
        assert_eq!(sizes, [ranks.len() / pipeline, data]);
        let mut rank = 0;
        for stage in 0..pipeline {
            for sample in 0..data {
                for part in 0..tensor {
                    let mesh = &ranks[rank];
                    assert_eq!((mesh.stage(), mesh.data_rank(), mesh.tensor_rank()), (stage, sample, part));
                    let expected = [
                        (RankGroup::Pipe, sample * tensor + part, stage),
                        (RankGroup::Zero, stage, sample * tensor + part),
                        (RankGroup::TensorZero, stage * tensor + part, sample),
                        (RankGroup::Tensor, stage * data + sample, part),
                    ];
                    for (kind, group, number) in expected {
                        assert_eq!(mesh.colour_and_key(kind), (group, number), "{mesh:?} {kind:?}");
                    }
                    rank += 1;
                }
            }
        }
    }
}

#[test]
fn without_pipeline_and_tensor_ranks_all_data_ranks_are_one_group() {
    let mesh = Mesh::new(3, 8, 1, 1).unwrap();
    for kind in [RankGroup::Zero, RankGroup::TensorZero] {
        assert_eq!(mesh.group_ranks(kind), (0..8).collect::<Vec<_>>());
    }
    for kind in [RankGroup::Pipe, RankGroup::Tensor] {
        assert_eq!(mesh.group_ranks(kind), [3]);
    }
}

#[test]
fn a_fused_projection_gives_every_rank_matching_heads() {
    // 4 query heads and 2 key and value heads of 3 elements.
    let split =
        Split::Axis { axis: 0, parts: vec![SplitPart::units(4, 3), SplitPart::units(2, 3), SplitPart::units(2, 3)] };
    let part = split.local("qkv", Shape::from([24, 5]), 2, 1).unwrap();
    assert_eq!(part.shape, Shape::from([12, 5]));
    assert_eq!(part.ranges, [6..12, 15..18, 21..24]);
    assert_eq!(part.runs(Shape::from([24, 5])), [(30, 0, 30), (75, 30, 15), (105, 45, 15)]);
}

#[test]
fn fewer_heads_than_ranks_are_shared_by_neighbours() {
    let split = Split::Axis { axis: 0, parts: vec![SplitPart::units(8, 2), SplitPart::units(2, 2)] };
    let held: Vec<_> = (0..4).map(|rank| split.local("qk", Shape::from([20]), 4, rank).unwrap().ranges).collect();
    assert_eq!(held[0], [0..4, 16..18]);
    assert_eq!(held[1], [4..8, 16..18]);
    assert_eq!(held[2], [8..12, 18..20]);
    assert_eq!(held[3], [12..16, 18..20]);
}

#[test]
fn a_split_along_the_inner_axis_has_a_run_for_each_row() {
    let part = Split::even(1, 4).local("w", Shape::from([3, 4]), 2, 1).unwrap();
    assert_eq!(part.shape, Shape::from([3, 2]));
    assert_eq!(part.runs(Shape::from([3, 4])), [(2, 0, 2), (6, 2, 2), (10, 4, 2)]);
}

#[test]
fn a_replicated_parameter_is_one_run() {
    let part = Split::Replicated.local("b", Shape::from([3, 4]), 4, 3).unwrap();
    assert_eq!(part.runs(Shape::from([3, 4])), [(0, 0, 12)]);
    let scalar = Split::Replicated.local("s", Shape::from([]), 1, 0).unwrap();
    assert_eq!(scalar.runs(Shape::from([])), [(0, 0, 1)]);
}

#[test]
fn splits_that_do_not_divide_evenly_are_refused_with_the_name() {
    let error = Split::even(0, 5).local("bias", Shape::from([5]), 2, 0).unwrap_err().to_string();
    assert!(error.contains("bias") && error.contains('5'), "{error}");
    assert!(Split::even(0, 4).local("bias", Shape::from([5]), 1, 0).is_err());
    assert!(Split::even(2, 4).local("bias", Shape::from([4]), 1, 0).is_err());
    assert!(Split::Axis { axis: 0, parts: vec![SplitPart::units(3, 2)] }.local("h", Shape::from([6]), 2, 0).is_err());
}

#[test]
fn a_vocabulary_has_equal_room_on_all_ranks_and_padding_after_the_last_token() {
    let split = Split::Vocabulary { axis: 0, multiple: 4 };
    let shape = Shape::from([11, 3]);
    let runs = |ranks, rank| {
        let part = split.local("table", shape, ranks, rank).unwrap();
        (part.shape.dims().to_vec(), part.runs(shape), part.is_padded())
    };
    assert_eq!(runs(1, 0), (vec![12, 3], vec![(0, 0, 33)], true));
    assert_eq!(runs(2, 0), (vec![8, 3], vec![(0, 0, 24)], false));
    assert_eq!(runs(2, 1), (vec![8, 3], vec![(24, 0, 9)], true));
    assert_eq!(runs(4, 2), (vec![4, 3], vec![(24, 0, 9)], true));
    assert_eq!(runs(4, 3), (vec![4, 3], vec![], true));
    // Rows of an inner axis: padding after each of them.
    let part = Split::Vocabulary { axis: 1, multiple: 4 }.local("bias", Shape::from([2, 11]), 2, 1).unwrap();
    assert_eq!(part.runs(Shape::from([2, 11])), [(8, 0, 3), (19, 8, 3)]);
    assert!(Split::Vocabulary { axis: 2, multiple: 4 }.local("bias", shape, 2, 0).is_err());
}

#[test]
fn shared_ranges_are_the_units_that_several_ranks_have() {
    let parts = vec![SplitPart::units(8, 2), SplitPart::units(2, 2), SplitPart::units(2, 2)];
    let shared = |split: &Split, shape: [usize; 2], ranks| {
        let shape = Shape::from(shape);
        split.shared(&split.local("qkv", shape, ranks, ranks - 1).unwrap(), ranks)
    };
    let rows = Split::Axis { axis: 0, parts: parts.clone() };
    assert_eq!(shared(&rows, [24, 5], 2), []);
    // Two query heads of two rows, then a key head and a value head that two ranks have.
    assert_eq!(shared(&rows, [24, 5], 4), [SharedRange { range: 20..40, replicas: 2 }]);
    let columns = Split::Axis { axis: 1, parts };
    let of_row = |start| SharedRange { range: start..start + 4, replicas: 4 };
    assert_eq!(shared(&columns, [2, 24], 8), [of_row(2), of_row(8)]);
    assert_eq!(shared(&Split::ReplicatedTerms, [2, 3], 4), [SharedRange { range: 0..6, replicas: 4 }]);
    assert_eq!(shared(&Split::ReplicatedTerms, [2, 3], 1), []);
    assert_eq!(shared(&Split::Replicated, [2, 3], 4), []);
}

#[test]
fn parameters_start_on_boundaries_of_256_elements() {
    let layout = ShardLayout::new(DType::F32, &[3, 256, 1], 1);
    assert_eq!(layout.spans().iter().map(|s| s.start).collect::<Vec<_>>(), [0, 256, 512]);
    assert_eq!(layout.gathered_len(), 513);
    let halves = ShardLayout::new(DType::BF16, &[3, 257, 1], 1);
    assert_eq!(halves.spans().iter().map(|s| s.start).collect::<Vec<_>>(), [0, 256, 768]);
}

#[test]
fn every_element_of_every_parameter_has_exactly_one_owner() {
    for world in 1..9 {
        for lengths in [&[1usize][..], &[5, 0, 700], &[1000, 3, 129, 64]] {
            let layout = ShardLayout::new(DType::F32, lengths, world);
            for (index, &len) in lengths.iter().enumerate() {
                let mut next = 0;
                for rank in 0..world {
                    let part = layout.owned_part(index, rank);
                    if !part.is_empty() {
                        assert_eq!(part.start, next);
                        next = part.end;
                    }
                }
                assert_eq!(next, len, "parameter {index} of {lengths:?} on {world} ranks");
            }
            let blocks: usize = lengths.iter().map(|len| len.div_ceil(256)).sum();
            assert!(layout.gathered_len() < 256 * (blocks + world));
            assert!(world == 1 || layout.shard_len().is_multiple_of(256));
        }
    }
}
