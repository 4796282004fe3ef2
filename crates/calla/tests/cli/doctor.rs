//! doctor: well on a machine that runs these tests, and not when something is wrong.

use serde_json::Value;

use crate::{calla, json, seedling, success, text, tiny};

#[test]
fn a_machine_that_runs_the_tests_is_well() {
    let report = json(&["doctor", "--json"]);
    assert_eq!((&report["ok"], &report["problems"]), (&true.into(), &Value::Array(Vec::new())));
    assert_eq!(report["model"]["name"], "seedling");
    assert_eq!(report["model"]["context_fits"], report["model"]["context_max"]);
    let sets = report["instruction_sets"].as_array().expect("a list");
    let used: Vec<_> = sets.iter().filter(|set| set["used"] == true).collect();
    assert_eq!(used.len(), 1, "{sets:?}");
    let description = report["model"]["description"].as_str().expect("it runs");
    assert!(description.contains(used[0]["name"].as_str().expect("a name")), "{description}");

    // Every instruction set that is there was tried, with every kernel.
    let kernels = report["kernels"].as_array().expect("a list");
    for set in sets.iter().filter(|set| set["available"] == true) {
        let of_set = kernels.iter().filter(|kernel| kernel["path"] == set["name"]);
        let good = of_set.clone().filter(|kernel| kernel["ok"] == true).count();
        assert!(good == of_set.count() && good > 10, "{set}");
    }
    let read = &report["read_gb_s"];
    assert!(read.is_null() || read.as_f64() > Some(0.0), "{read}");
}

#[test]
fn an_instruction_set_that_is_not_there_is_a_problem() {
    let mut command = calla(&["doctor", "--json"]);
    let output = command.env("CALLA_SIMD", "abacus").output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!(report["ok"], false);
    let problem = report["problems"][0].as_str().expect("a problem");
    assert!(problem.contains("CALLA_SIMD=abacus"), "{problem}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(problem));
}

#[test]
fn a_model_that_the_best_backend_cannot_take_is_a_problem_and_the_reason_is_told() {
    let model = tiny("moe_wide");
    let output = calla(&["doctor", "--model", text(&model)]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let report = String::from_utf8_lossy(&output.stdout);
    for words in ["backends", "reference", "a multiple of 64", "not all is well", "GB/s"] {
        assert!(report.contains(words), "{words} is missing from\n{report}");
    }
    // Asked for by name, it is as it should be.
    let asked = calla(&["doctor", "--model", text(&model), "--backend", "reference"]).output();
    let report = success(&asked.expect("it starts"));
    assert!(report.contains("asked for") && report.contains("all is well"), "{report}");
}

#[test]
fn a_model_that_is_not_there_is_a_problem() {
    let output = calla(&["doctor", "--model", "/nowhere/model"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("/nowhere/model") && stderr.lines().count() == 1, "{stderr}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("agree with the reference"));
}

#[test]
fn a_model_that_cannot_talk_is_a_problem() {
    let model = seedling("doctor-no-words");
    std::fs::write(model.join("tokenizer.json"), "").expect("writable");
    let output = calla(&["doctor", "--json", "--model", text(&model)]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    let problem = report["problems"][0].as_str().expect("a problem");
    assert!(problem.contains("tokenizer.json") && problem.contains(text(&model)), "{problem}");
    assert!(report["model"]["description"].is_string(), "its weights run: {report}");
}
