//! eval exam: answers are judged, counted and written down.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::{calla, failure, json, scratch, stdout, text};

fn asked(skill: &str, expect: &str) -> Value {
    json!({
        "id": format!("{skill}-00"), "skill": skill, "thinking": false, "max_tokens": 40,
        "messages": [{"role": "user", "content": "Hello"}], "judge": "exact", "expect": expect,
    })
}

fn written(test: &str, items: &[Value]) -> PathBuf {
    let file = scratch(test).join("exam.jsonl");
    let lines: Vec<String> = items.iter().map(Value::to_string).collect();
    fs::write(&file, format!("{{\"filler\":[]}}\n{}\n", lines.join("\n"))).expect("writable");
    file
}

/// What the model says is taken from `calla chat`: the exam goes the same way.
#[test]
fn right_and_wrong_answers_are_told_apart_and_wrong_ones_written_down() {
    let said = stdout(&["chat", "--no-think", "Hello"]);
    let cut = json!({
        "id": "copying-00", "skill": "copying", "thinking": false, "max_tokens": 1,
        "messages": [{"role": "user", "content": "Hello"}], "judge": "format",
    });
    let exam =
        written("exam", &[asked("facts", said.trim()), asked("sorting", "What nobody says."), cut]);
    let wrong = exam.with_file_name("wrong.jsonl");
    let arguments = ["eval", "exam", "--exam", text(&exam), "--failures", text(&wrong)];

    let report = json(&[&arguments[..], &["--json"]].concat());
    assert_eq!(report["items"], 3, "{report}");
    assert_eq!(report["right"], 1, "{report}");
    assert_eq!(report["well_formed"], 2, "{report}");
    assert_eq!(report["passed"], false, "{report}");
    let row = |skill: &str| {
        let rows = report["skills"].as_array().expect("a list");
        rows.iter().find(|row| row["skill"] == skill).expect("it was asked").clone()
    };
    assert_eq!((&row("facts")["reached"], &row("facts")["share"]), (&json!(true), &json!(1.0)));
    assert_eq!((&row("sorting")["reached"], &row("sorting")["mark"]), (&Value::Null, &Value::Null));
    assert_eq!(row("copying")["reached"], false);

    let wrong = fs::read_to_string(wrong).expect("it was written");
    let wrong: Vec<Value> =
        wrong.lines().map(|line| serde_json::from_str(line).expect("JSON a line")).collect();
    assert_eq!(wrong.len(), 2);
    assert_eq!(wrong[0]["id"], "sorting-00");
    assert_eq!(wrong[0]["expected"], "What nobody says.");
    assert_eq!(wrong[0]["got"]["content"].as_str().map(str::trim), Some(said.trim()));
    assert_eq!(wrong[0]["messages"][0]["content"], "Hello");
    assert_eq!(wrong[1]["why"], "did not end by itself");
}

#[test]
fn a_missed_mark_fails_only_where_marks_are_required() {
    let exam = written("marks", &[asked("sorting", "No."), asked("json", "No.")]);
    let arguments = ["eval", "exam", "--exam", text(&exam), "--skills", "json"];
    let table = stdout(&arguments);
    assert!(table.contains("0.95  missed") && !table.contains("sorting"), "{table}");

    let output = calla(&[&arguments[..], &["--require-marks"]].concat()).output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), table);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(message, "calla: marks missed: json 0.000 of 0.95\n");

    // A skill without a mark cannot miss it, but an exam cannot leave marks out unseen.
    let unmarked = ["eval", "exam", "--exam", text(&exam), "--require-marks"];
    stdout(&[&unmarked[..], &["--skills", "sorting"]].concat());
    let message = failure(&unmarked, 1);
    assert!(message.contains("no items of `copying`"), "{message}");
}

#[test]
fn the_exam_inside_the_program_has_items_of_every_skill_with_a_mark() {
    let marked = "copying,recall,facts,format,arithmetic,tools,json";
    let arguments = ["eval", "exam", "--per-skill", "1", "--skills", marked, "--json"];
    let report = json(&arguments);
    assert_eq!(report["items"], 7, "{report}");
    let rows = report["skills"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["mark"].is_number()), "{report}");
}

#[test]
fn what_cannot_be_asked_is_one_line_that_says_what_there_is() {
    let message = failure(&["eval", "exam", "--skills", "facts,cooking"], 1);
    assert!(message.contains("`cooking`") && message.contains("recall_4096"), "{message}");
    let message = failure(&["eval", "exam", "--exam", "/nowhere/exam.jsonl"], 1);
    assert!(message.contains("/nowhere/exam.jsonl"), "{message}");
    let exam = written("bad-exam", &[json!({"id": "a"})]);
    let message = failure(&["eval", "exam", "--exam", text(&exam)], 1);
    assert!(message.contains("exam.jsonl") && message.contains("`skill`"), "{message}");
    let exam = written("no-room", &[asked("facts", "x")]);
    let arguments = ["eval", "exam", "--exam", text(&exam), "--failures", "/nowhere/wrong.jsonl"];
    assert!(failure(&arguments, 1).contains("/nowhere/wrong.jsonl"));
}
