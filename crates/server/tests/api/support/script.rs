/// Questions and the answers to them, markers included: `"I greet.\n</think>\n\nHello"`.
pub(crate) type Script = [(&'static str, String)];

/// What every test's model knows.
pub(crate) fn standard_script() -> Vec<(&'static str, String)> {
    let weather = call("weather", &[("city", "Zürich"), ("days", "3")]);
    let code = call("run", &[("code", "if a < b:\n    print(\"<é>\")")]);
    let zip = call("weather", &[("city", "02134")]);
    vec![
        // With its end, so that an answer that says the word is not taken for the question.
        ("Hello<|im_end|>", "Hello to you".to_owned()),
        ("say hello", "Hello there".to_owned()),
        ("say thinking", "I greet.\n</think>\n\nHello there".to_owned()),
        ("say wide", "日本語 🦀👩🏽 é".to_owned()),
        ("say nothing", String::new()),
        ("say stop", "one two END three".to_owned()),
        ("say almost", "one EN two E".to_owned()),
        ("say long", "tick ".repeat(3000)),
        ("use one", format!("Let me look.\n\n{weather}")),
        ("use thinking", format!("I need it.\n</think>\n\n{weather}")),
        ("use three", format!("{weather}\n{code}\n{zip}")),
        ("use broken", "<tool_call>\nnothing that parses".to_owned()),
    ]
}

fn call(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}
