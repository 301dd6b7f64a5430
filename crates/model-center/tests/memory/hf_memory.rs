//! What reading and writing weights costs in memory. Alone in its process: it looks at the process's own peak.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use bmtrain_core::Device;
use bmtrain_core::dtype::DType;
use bmtrain_dist::param::{Builder, BuilderOptions, Init, Split};
use model_center::formats::{Allow, LoadPlan, NameTable, ParamShape, Rule, SafetensorsFile, Weights, export};

use crate::peak;

const MIB: u64 = 1 << 20;

/// The text of one of many pieces of a header.
type TensorPart = Box<dyn Fn(usize) -> String>;

/// A file whose header is `head`, then `body` for each number below `count`, then `tail`, never whole in memory.
fn write_header(path: &Path, head: &str, body: impl Fn(usize) -> String, count: usize, tail: &str) {
    let length = head.len() + (0..count).map(|i| body(i).len()).sum::<usize>() + tail.len();
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&(length as u64).to_le_bytes()).unwrap();
    file.write_all(head.as_bytes()).unwrap();
    for i in 0..count {
        file.write_all(body(i).as_bytes()).unwrap();
    }
    file.write_all(tail.as_bytes()).unwrap();
    file.write_all(&[0]).unwrap();
}

/// Ten parameters of 8 MiB, written and read: two of them at a time would be seen.
fn a_model_passes_through_one_parameter_at_a_time(directory: &Path) {
    let rules = vec![Rule::new("a.{i}", "x.{i}.{q|k}"), Rule::new("b.{i}", "y.{i}").transposed()];
    let table = NameTable {
        base_prefix: "",
        rules: Cow::Owned(rules),
        aliases: Cow::Borrowed(&[]),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    };
    let params: Vec<ParamShape> =
        (0..10).map(|i| ParamShape::new(format!("{}.{i}", ["a", "b"][i % 2]), [2048, 1024])).collect();
    let before = peak();
    let fill = |_: &str, out: &mut Vec<f32>| {
        out.resize(2048 * 1024, 1.0);
        Ok(())
    };
    export(&table, &params, directory, DType::BF16, true, 10 * MIB, fill).unwrap();
    let weights = Weights::open(directory).unwrap();
    let plan = LoadPlan::build(&table, &params, &weights, &Allow::default()).unwrap();
    let mut sum = 0.0f64;
    plan.load(&weights, |_, values| {
        sum += values.iter().map(|v| f64::from(*v)).sum::<f64>();
        Ok(())
    })
    .unwrap();
    assert_eq!(sum, 10.0 * 2048.0 * 1024.0);
    // One parameter, its transpose, conversion buffers and room for the allocator; the whole model has 80 MiB.
    assert!(peak() - before < 32 * MIB, "{} bytes", peak() - before);
}

/// Headers that a reader which first builds generic JSON would blow up sixteenfold and more.
fn a_hostile_header_costs_its_length_and_at_most_64_mib(directory: &Path) {
    let path = directory.join("m.safetensors");
    let length = 24 * MIB as usize;
    let before = peak();
    let tensor = |i: usize| format!("\"{i:07}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},");
    let fixed = |text: &'static str| move |_: usize| text.to_string();
    let cases: [(&str, TensorPart, usize, &str); 6] = [
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[", Box::new(fixed("1,")), length / 2, "1],\"data_offsets\":[0,1]}}"),
        (
            "{\"a\":{\"dtype\":\"U8\",\"x\":[",
            Box::new(fixed("[],")),
            length / 3,
            "1],\"shape\":[1],\"data_offsets\":[0,2]}}",
        ),
        ("{\"a\":", Box::new(fixed("[")), length, "}"),
        ("{\"__metadata__\":{\"a\":\"b\"", Box::new(fixed(",\"c\":\"d\"")), length / 8, "},\"x\":1}"),
        ("{", Box::new(tensor), length / 56, "\"x\":1}"),
        // The maximum number: this one is valid except for the byte that follows.
        (
            "{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
            Box::new(move |i| format!(",{}", tensor(i).trim_end_matches(','))),
            262_143,
            "}",
        ),
    ];
    for (i, (head, body, count, tail)) in cases.into_iter().enumerate() {
        write_header(&path, head, body, count, tail);
        assert!(SafetensorsFile::open(&path).is_err());
        let (cost, allowed) = (peak() - before, fs::metadata(&path).unwrap().len() + 64 * MIB);
        assert!(cost < allowed, "case {i}: {cost} bytes, allowed {allowed}");
    }
}

#[test]
fn weights_are_read_and_written_in_bounded_memory() {
    if !crate::is_alone("hf_memory::weights_are_read_and_written_in_bounded_memory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    a_model_passes_through_one_parameter_at_a_time(dir.path());
    a_hostile_header_costs_its_length_and_at_most_64_mib(dir.path());
}

/// A table of 32 MiB in bf16, as a vocabulary's is the largest parameter of a model: in f32 it has 64 MiB.
#[test]
fn a_large_parameter_is_loaded_without_a_second_one() {
    if !crate::is_alone("hf_memory::a_large_parameter_is_loaded_without_a_second_one") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let table = NameTable {
        base_prefix: "",
        rules: Cow::Owned(vec![Rule::new("table", "table.weight")]),
        aliases: Cow::Borrowed(&[]),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    };
    let shape = [16384, 1024];
    let path = dir.path().join("model.safetensors");
    let mut file = File::create(&path).unwrap();
    let header = "{\"table.weight\":{\"dtype\":\"BF16\",\"shape\":[16384,1024],\"data_offsets\":[0,33554432]}}   ";
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    // Row `i` has the bits `i`, all of them finite.
    for row in 0..16384u16 {
        file.write_all(&row.to_le_bytes().repeat(1024)).unwrap();
    }
    drop(file);
    let weights = Weights::open(dir.path()).unwrap();
    let plan = LoadPlan::build(&table, &[ParamShape::new("table", shape)], &weights, &Allow::default()).unwrap();
    let builder =
        Builder::new(&Device::cpu(1).unwrap(), BuilderOptions { dtype: DType::BF16, ..BuilderOptions::default() });
    let param = builder.param("table", shape, Init::ZEROS, Split::Replicated, true).unwrap();
    let parameters = builder.finish();
    let before = peak();
    plan.load_parts(&weights, |_, read| param.load_part(read)).unwrap();
    let cost = peak() - before;
    // The parameter itself, chunks, and room for the allocator.
    assert!(cost < 40 * MIB, "{cost} bytes");
    let values = parameters.get("table").unwrap().read().unwrap();
    assert!(values.iter().enumerate().all(|(i, value)| value.to_bits() == ((i / 1024) as u32) << 16));
}
