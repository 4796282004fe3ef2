//! synth, bench and eval: what a developer measures with.

use std::{fs, process::Stdio};

use crate::{calla, failure, json, scratch, stdout, text, tiny};

#[test]
fn a_made_up_checkpoint_can_be_measured() {
    let model = scratch("bench").join("model");
    let made = json(&["synth", "--shape", "tiny", "--out", text(&model), "--json"]);
    assert_eq!(made["shards"], 1);
    let on_disk = fs::metadata(model.join("model.safetensors")).expect("it was made").len();
    let claimed = made["size_bytes"].as_u64().expect("a number");
    assert!(claimed < on_disk && on_disk < claimed + 50_000, "{claimed} {on_disk}");

    let bench = ["bench", "--model", text(&model), "--contexts", "8,70", "--json"];
    let report = json(&[&bench[..], &["--steps", "5"]].concat());
    assert_eq!(report["model"], "model");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert!(report["backend"].is_string() && report["machine"].is_object());
    let runs = report["runs"].as_array().expect("a list");
    assert_eq!(runs.iter().map(|run| &run["context"]).collect::<Vec<_>>(), [8, 70]);
    for run in runs {
        for field in ["prefill_tok_s", "decode_tok_s"] {
            let number = |name: &str| run[name].as_f64().expect("a number");
            let (min, max) = (number(&format!("{field}_min")), number(&format!("{field}_max")));
            let median = number(field);
            assert!(0.0 < min && min <= median && median <= max, "{min} {median} {max}");
        }
        let share = run["floor_share"].as_f64().expect("a number");
        assert!(share > 0.0, "{share}");
        let digest = run["digest"].as_str().expect("text");
        assert!(digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{digest}");
    }
    assert_ne!(runs[0]["digest"], runs[1]["digest"]);

    // However few steps are timed, the digest is over 64 tokens of the same run.
    let again = json(&[&bench[..], &["--steps", "3", "--repetitions", "1"]].concat());
    assert_eq!(again["runs"][1]["digest"], runs[1]["digest"]);
}

#[test]
fn streams_are_decoded_together_and_each_as_alone() {
    let model = tiny("moe_base");
    let bench = ["bench", "--model", text(&model), "--steps", "3", "--repetitions", "1"];
    let of = |more: &[&str]| json(&[&bench[..], &["--json"], more].concat());
    let alone = of(&["--contexts", "20"]);
    assert_eq!(alone["streams"], 1);
    let one = &alone["runs"][0];
    assert_eq!(one["decode_stream_tok_s"], one["decode_tok_s"]);

    let together = of(&["--contexts", "20", "--streams", "3"]);
    assert_eq!(together["streams"], 3);
    let run = &together["runs"][0];
    let number = |name: &str| run[name].as_f64().expect("a number");
    let ratio = number("decode_tok_s") / number("decode_stream_tok_s");
    assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
    assert!(run.get("floor_share").is_none(), "streams share what they read");
    assert_ne!(run["digest"], one["digest"]);

    let table = stdout(&[&bench[..], &["--contexts", "20", "--streams", "3"]].concat());
    assert!(table.contains("3 decoded together") && table.contains("each"), "{table}");
}

#[test]
fn without_contexts_a_model_is_measured_as_far_as_it_holds() {
    // It holds 4,096 tokens: the larger default leaves no room for the decoded ones.
    let model = tiny("dense");
    let report = json(&["bench", "--model", text(&model), "--repetitions", "1", "--json"]);
    let contexts: Vec<_> = (report["runs"].as_array().expect("a list").iter())
        .filter_map(|run| run["context"].as_u64())
        .collect();
    assert_eq!((report["model"].as_str(), &contexts[..]), (Some("dense"), &[512][..]));
}

#[test]
fn the_table_of_a_benchmark_names_its_columns() {
    let arguments = ["bench", "--contexts", "8", "--steps", "1", "--repetitions", "1"];
    let table = stdout(&[&arguments[..], &["--model", text(&tiny("dense"))]].concat());
    for word in ["prefill tok/s", "decode tok/s", "floor", "digest", "GB/s", "ready"] {
        assert!(table.contains(word), "{word} is missing from\n{table}");
    }
}

#[test]
fn a_profile_explains_the_whole_time_of_both_phases() {
    let model = tiny("moe_base");
    let arguments = ["bench", "--model", text(&model), "--contexts", "70", "--profile"];
    let short = ["--steps", "3", "--repetitions", "1"];
    let report = json(&[&arguments[..], &short, &["--json"]].concat());
    for (phase, tokens) in [("prefill", 70), ("decode", 3)] {
        let profile = &report["runs"][0]["profile"][phase];
        assert_eq!(profile["tokens"], tokens);
        let seconds = |value: &serde_json::Value| value["seconds"].as_f64().expect("a number");
        let list = |value: &serde_json::Value, field: &str| {
            value[field].as_array().expect("a list").clone()
        };
        let stages = list(profile, "stages");
        let names: Vec<_> = stages.iter().map(|stage| stage["stage"].as_str()).collect();
        let expected = ["embed", "delta_net", "attention", "moe", "head"];
        assert_eq!(names, expected.map(Some), "{profile}");
        let total: f64 = stages.iter().map(seconds).sum();
        assert!((total / seconds(profile) - 1.0).abs() < 1e-6, "{profile}");
        for stage in &stages {
            let total: f64 = list(stage, "ops").iter().map(seconds).sum();
            assert!((total / seconds(stage) - 1.0).abs() < 1e-6, "{stage}");
        }
        let experts = list(&stages[3], "ops");
        let experts = experts.iter().find(|op| op["op"] == "experts_down").expect("it ran");
        assert!(experts["gb_s"].is_number() && experts["gflop_s"].is_number(), "{experts}");
    }

    let table = stdout(&[&arguments[..], &short].concat());
    for word in ["prefill at 70", "decode at 70", "experts_gate_up", "idle", "GFLOP/s"] {
        assert!(table.contains(word), "{word} is missing from\n{table}");
    }
    let plain = json(&[&arguments[..5], &short, &["--json"]].concat());
    assert!(plain["runs"][0].get("profile").is_none(), "{plain}");
}

#[test]
fn a_backend_without_clocks_refuses_a_profile_before_anything_is_measured() {
    let model = tiny("dense");
    let arguments = ["bench", "--model", text(&model), "--backend", "reference", "--profile"];
    let message = failure(&arguments, 1);
    assert!(message.contains("reference") && message.contains("choose another"), "{message}");
}

#[test]
fn a_context_that_does_not_fit_is_refused_before_anything_is_measured() {
    let model = tiny("dense");
    let arguments = ["bench", "--model", text(&model), "--contexts", "8,5000"];
    let message = failure(&arguments, 1);
    assert!(message.contains("--contexts") && message.contains("4096"), "{message}");
}

#[test]
fn every_tiny_checkpoint_agrees_with_its_golden_logits() {
    for entry in fs::read_dir(tiny("")).expect("they are committed") {
        let model = entry.expect("readable").path();
        let golden = model.join("golden.safetensors");
        let agreement = json(&[
            "eval",
            "agree",
            "--model",
            text(&model),
            "--against",
            text(&golden),
            "--precision",
            "exact",
            "--json",
        ]);
        let number = |field: &str| agreement[field].as_f64().expect("a number");
        assert!(number("positions") >= 48.0, "{agreement}");
        assert_eq!(number("top1_agreement"), 1.0, "{agreement}");
        assert!(number("rel_error") < 1e-3, "{agreement}");
        assert!(number("kl_mean") <= number("kl_max") && number("kl_max") < 1e-4, "{agreement}");
        assert!(number("max_abs_error") < 0.1, "{agreement}");
    }
}

#[test]
fn another_models_logits_do_not_agree() {
    let golden = tiny("moe_override").join("golden.safetensors");
    let model = tiny("moe_unnormalised");
    let agreement =
        json(&["eval", "agree", "--model", text(&model), "--against", text(&golden), "--json"]);
    assert!(agreement["top1_agreement"].as_f64().expect("a number") < 0.5, "{agreement}");
    assert!(agreement["rel_error"].as_f64().expect("a number") > 0.5, "{agreement}");
}

#[test]
fn logits_that_cannot_be_compared_are_refused_by_name() {
    let model = tiny("dense");
    let against = |file: &std::path::Path| {
        failure(&["eval", "agree", "--model", text(&model), "--against", text(file)], 1)
    };
    let other_vocab = against(&tiny("moe_tied").join("golden.safetensors"));
    assert!(other_vocab.contains("512") && other_vocab.contains("320"), "{other_vocab}");
    let no_golden = against(&model.join("model.safetensors"));
    assert!(no_golden.contains("`ids`"), "{no_golden}");
    let missing = against(&model.join("nowhere.safetensors"));
    assert!(missing.contains("nowhere.safetensors"), "{missing}");
    let cut = scratch("cut").join("golden.safetensors");
    let whole = fs::read(model.join("golden.safetensors")).expect("committed");
    fs::write(&cut, &whole[..whole.len() - 8]).expect("writable");
    assert!(against(&cut).contains("golden.safetensors"));
}

#[test]
fn a_checkpoint_is_not_overwritten_by_mistake() {
    let model = scratch("overwrite").join("model");
    let arguments = ["synth", "--shape", "tiny", "--layers", "1", "--out", text(&model)];
    stdout(&arguments);
    let message = failure(&arguments, 1);
    assert!(message.contains("--force"), "{message}");
    stdout(&[&arguments[..], &["--force"]].concat());

    // Its last step could not put a folder in a link's place.
    #[cfg(unix)]
    for target in [model.as_path(), std::path::Path::new("nowhere")] {
        let link = model.with_file_name("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).expect("made");
        let message = failure(&["synth", "--shape", "tiny", "--force", "--out", text(&link)], 1);
        assert!(message.contains("is a link"), "{message}");
        assert!(!model.with_file_name("link.partial").exists() && model.exists());
    }
}

/// A run that is killed leaves nothing under the name it was to make.
#[test]
fn a_killed_synth_leaves_no_folder_that_looks_whole() {
    let model = scratch("killed").join("model");
    let arguments = ["synth", "--shape", "qwen3.6-35b-a3b", "--layers", "1", "--out", text(&model)];
    let mut child = calla(&arguments).stdout(Stdio::null()).spawn().expect("it starts");
    let partial = model.with_file_name("model.partial");
    while !partial.exists() && child.try_wait().expect("it can be asked").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(!model.exists());
    // A later run clears up.
    stdout(&["synth", "--shape", "tiny", "--out", text(&model)]);
    assert!(model.exists() && !partial.exists());
}
