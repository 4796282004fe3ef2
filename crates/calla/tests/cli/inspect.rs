//! What inspect says adds up, and is what bench measures against.

use serde_json::Value;

use crate::{json, stdout, text, tiny};

#[test]
fn the_parts_of_a_model_add_up() {
    let report = json(&["inspect", "--tensors", "--json"]);
    assert_eq!(report["model"], "seedling");
    let sum = |list: &str, field: &str| -> u64 {
        list_of(&report, list).iter().map(|part| number(&part[field])).sum()
    };
    for field in ["parameters", "parameters_active", "bytes"] {
        assert_eq!(sum("roles", field), number(&report[field]), "{field}");
    }
    assert_eq!(sum("tensors", "bytes"), number(&report["bytes"]));
    let values: u64 = (list_of(&report, "tensors").iter())
        .map(|tensor| list_of(tensor, "shape").iter().map(number).product::<u64>())
        .sum();
    assert_eq!(values, number(&report["parameters"]));

    let role = |name: &str| {
        let role = list_of(&report, "roles").iter().find(|role| role["role"] == name);
        role.unwrap_or_else(|| panic!("no role {name}"))
    };
    let experts = &report["shape"]["mlp"];
    let share = number(&experts["experts"]) / number(&experts["experts_per_token"]);
    let part = role("experts");
    assert_eq!(number(&part["parameters"]), share * number(&part["parameters_active"]));
    // Four bits, and a scale and a bias of sixteen for each 64 weights.
    assert_eq!(part["bits_per_weight"], 4.5);
    assert_eq!(role("router")["formats"][0]["bits"], 8);
    assert_eq!(role("embed")["parameters_active"], report["shape"]["hidden"]);
}

#[test]
fn the_floor_of_a_benchmark_is_what_inspect_says() {
    for model in ["dense", "moe_base"] {
        let model = tiny(model);
        let device = ["--model", text(&model), "--precision", "exact", "--json"];
        let report = json(&[&["inspect"][..], &device].concat());
        let cost = |field: &str| number(&report["cost"][field]);
        assert_eq!(report["cost"]["kv_dtype"], "float32");
        let flags = ["bench", "--contexts", "70", "--steps", "1", "--repetitions", "1"];
        let bench = json(&[&flags[..], &device].concat());
        // 70 tokens are two pages of 64.
        let expected =
            cost("decode_weight_bytes") + 2 * cost("state_bytes") + 128 * cost("kv_token_bytes");
        assert_eq!(number(&bench["runs"][0]["token_bytes"]), expected);

        let context = &report["contexts"][0];
        assert_eq!(context["tokens"], 4096);
        assert_eq!(number(&context["kv_bytes"]), 4096 * cost("kv_token_bytes"));
        let states = 2 * cost("state_bytes") + number(&context["kv_bytes"]);
        assert_eq!(number(&context["decode_bytes"]), cost("decode_weight_bytes") + states);
    }
}

#[test]
fn a_folder_is_named_with_or_without_the_flag_and_the_text_says_what_it_is() {
    let model = tiny("bits8");
    let text_report = stdout(&["inspect", text(&model), "--model", "/nowhere"]);
    for word in ["bits8", "delta_net", "attention", "parameters", "KV cache", "float16", "FLOP"] {
        assert!(text_report.contains(word), "{word} is missing from\n{text_report}");
    }
    assert!(!text_report.contains("q_proj"), "{text_report}");
    let listed = stdout(&["inspect", "--model", text(&model), "--tensors"]);
    assert!(listed.contains("q_proj.weight") && listed.contains("8/"), "{listed}");
}

fn list_of<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} is no list"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
