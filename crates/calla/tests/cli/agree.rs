//! eval agree: several sequences in one file.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{failure, json, scratch, text, tiny};

/// A tensor's dtype, shape and bytes.
type Part = (&'static str, Vec<usize>, Vec<u8>);

/// The golden ids and logits of a tiny checkpoint, twice over.
fn twice(model: &Path) -> (usize, Vec<(&'static str, Part)>) {
    let file = fs::read(model.join("golden.safetensors")).expect("committed");
    let header_len = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + header_len]).expect("JSON");
    let part = |name: &str| {
        let offset = |i: usize| header[name]["data_offsets"][i].as_u64().expect("there") as usize;
        let bytes = &file[8 + header_len..][offset(0)..offset(1)];
        let columns = header[name]["shape"].as_array().expect("a list")[1..].to_vec();
        let columns = columns.iter().map(|n| n.as_u64().expect("a number") as usize);
        (columns.collect::<Vec<_>>(), bytes.repeat(2))
    };
    let (_, ids) = part("ids");
    let (columns, logits) = part("logits");
    let rows = ids.len() / 4;
    let shape = vec![rows, columns[0]];
    (rows / 2, vec![("ids", ("I32", vec![rows], ids)), ("logits", ("F32", shape, logits))])
}

fn write(file: &Path, parts: &[(&str, Part)]) {
    let (mut header, mut data) = (json!({}), Vec::new());
    for (name, (dtype, shape, bytes)) in parts {
        let offsets = [data.len(), data.len() + bytes.len()];
        header[*name] = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        data.extend_from_slice(bytes);
    }
    let mut header = header.to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let len = (header.len() as u64).to_le_bytes();
    fs::write(file, [&len[..], header.as_bytes(), &data].concat()).expect("writable");
}

fn starts(places: &[i32]) -> (&'static str, Part) {
    let bytes = places.iter().flat_map(|place| place.to_le_bytes()).collect();
    ("starts", ("I32", vec![places.len()], bytes))
}

#[test]
fn every_sequence_of_a_file_begins_from_nothing() {
    let model = tiny("dense");
    let (len, mut parts) = twice(&model);
    let file = scratch("starts").join("twice.safetensors");
    let agree = || {
        let against = ["--against", text(&file), "--precision", "exact", "--json"];
        json(&[&["eval", "agree", "--model", text(&model)][..], &against].concat())
    };
    write(&file, &parts);
    let one = agree();
    parts.push(starts(&[0, len as i32]));
    write(&file, &parts);
    let two = agree();
    assert_eq!((&one["positions"], &two["positions"]), (&json!(2 * len), &json!(2 * len)));
    let error = |report: &Value| report["rel_error"].as_f64().expect("a number");
    assert!(error(&two) < 1e-4, "{two}");
    assert!(error(&one) > 0.1, "the second half continues the first: {one}");
    assert!(two["perplexity_rel_error"].as_f64().expect("a number") < 1e-4, "{two}");
}

#[test]
fn sequences_that_are_none_are_refused() {
    let model = tiny("dense");
    let (len, parts) = twice(&model);
    let file = scratch("bad-starts").join("twice.safetensors");
    for places in [&[][..], &[1], &[0, 0], &[0, 9, 8], &[0, -1], &[0, 2 * len as i32]] {
        let mut parts = parts.clone();
        parts.push(starts(places));
        write(&file, &parts);
        let message =
            failure(&["eval", "agree", "--model", text(&model), "--against", text(&file)], 1);
        assert!(message.contains("`starts`"), "{places:?}: {message}");
    }
}
