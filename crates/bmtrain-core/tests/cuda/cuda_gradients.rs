//! Gradients that blocks of the CUDA backend sum together, on an emulated driver: of embeddings and of norms.
#![cfg(feature = "cuda")]

use super::cuda_bits::{FLOATS, bytes, on_pair, tensor};
use bmtrain_core::kernel::{EmbeddingBackward, NormBackward, NormKind};
use bmtrain_core::{DType, Segment, Tensor};

#[test]
fn gradients_of_embeddings_by_one_block_and_by_several_have_the_bits_of_the_cpu() {
    const COLUMNS: usize = 3;
    on_pair("gradients_of_embeddings_by_one_block_and_by_several_have_the_bits_of_the_cpu", |pair| {
        for rows in [1, 31, 1024, 1025, 8192, 8193] {
            // Keys of one, two and three digits; whole numbers, whose sums are exact in any order.
            for entries in [5, 300, 70_000] {
                let ids: Vec<i64> = (0..rows).map(|i| ((i * 7919 + i * i % 11) % entries) as i64).collect();
                let dy: Vec<f32> = (0..rows * COLUMNS).map(|i| (i % 17) as f32 - 8.0).collect();
                pair.same_bits(&format!("{rows} rows of {entries}"), |device| {
                    let ids = Tensor::from_slice_in(device, [rows], &ids, Segment::Data).unwrap();
                    let (dy, mut table) =
                        (tensor(device, DType::F32, &dy), tensor(device, DType::F32, &vec![9.0; entries * COLUMNS]));
                    let dtable = table.dest(false).unwrap();
                    let (ids, dy, padding_index) = (ids.view().unwrap(), dy.view().unwrap(), Some(2));
                    let kernel = EmbeddingBackward { entries, columns: COLUMNS, ids, padding_index, dy, dtable };
                    device.launch(kernel).unwrap();
                    bytes(&table)
                });
            }
        }
    });
}

#[test]
fn gradients_of_a_norm_without_rows_are_zeros() {
    const COLUMNS: usize = 40;
    on_pair("gradients_of_a_norm_without_rows_are_zeros", |pair| {
        for dtype in FLOATS {
            for device in [&pair.cpu, &pair.emulated] {
                let (none, weight) = (tensor(device, dtype, &[]), tensor(device, dtype, &[1.0; COLUMNS]));
                let rstd = tensor(device, DType::F32, &[]);
                let [mut dweight, mut dbias] = [9.0, 5.0].map(|old| tensor(device, dtype, &[old; COLUMNS]));
                let kernel = NormBackward {
                    weight_offset: 0.0,
                    kind: NormKind::Rms,
                    rows: 0,
                    columns: COLUMNS,
                    x: none.view().unwrap(),
                    mean: None,
                    rstd: rstd.view().unwrap(),
                    weight: weight.view().unwrap(),
                    dy: none.view().unwrap(),
                    dx: None,
                    branch: None,
                    dweight: Some(dweight.dest(false).unwrap()),
                    dbias: Some(dbias.dest(true).unwrap()),
                };
                device.launch(kernel).unwrap();
                // What is added to stays.
                for (sums, value) in [(&dweight, 0.0), (&dbias, 5.0)] {
                    assert_eq!(bytes(sums), bytes(&tensor(device, dtype, &[value; COLUMNS])), "{dtype}, {value}");
                }
            }
        }
    });
}
