//! Tokenizer files and templates that are damaged, another model's, or meant to do harm: each is
//! refused with a message that says what is wrong and what to do.

use calla_text::{ChatTemplate, RenderInput, TextError, Tokenizer};
use serde_json::{Map, Value, json};

/// What is done to a good tokenizer.json, and words of the message.
type Case = (&'static str, fn(&mut Value), &'static [&'static str]);

const TOKENIZERS: &[Case] = &[
    (
        "an added token with another id",
        |file| file["added_tokens"][0]["id"] = json!(2_999),
        &["<|endoftext|>", "id 2999 in the file", "3000", "fetch it again"],
    ),
    (
        "two tokens with one id",
        |file| {
            let vocabulary = file["model"]["vocab"].as_object_mut().expect("a map");
            let id = vocabulary["a"].clone();
            vocabulary.insert("b".into(), id);
        },
        &["two tokens have the id", "fetch it again"],
    ),
    (
        "an id far above the others",
        |file| file["model"]["vocab"]["a"] = json!(1_000_000),
        &["token id 1000000", "far above", "fetch it again"],
    ),
    (
        "another kind of model",
        |file| file["model"] = json!({"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}),
        &["model.type is `Unigram`", "BPE", "publisher's repository"],
    ),
    (
        "rules that are longer than any",
        |file| {
            let pattern = json!({"type": "Split", "pattern": {"Regex": "\\p{L}{500}"},
                "behavior": "Isolated", "invert": false});
            file["pre_tokenizer"] =
                json!({"type": "Sequence", "pretokenizers": vec![pattern; 1_000]});
        },
        &["pre_tokenizer has", "publisher's repository"],
    ),
    (
        "a merge of tokens that are not there",
        |file| file["model"]["merges"] = json!([["<nowhere>", "<nothing>"]]),
        &["tokenizer.json is not usable", "<nowhere>"],
    ),
    (
        "a merge of two tokens that is longer than any token",
        |file| {
            let vocabulary = file["model"]["vocab"].as_object().expect("a map");
            let longest = vocabulary.keys().max_by_key(|token| token.len()).expect("one").clone();
            let merges = file["model"]["merges"].as_array_mut().expect("a list");
            merges.insert(2, json!([longest, "a"]));
        },
        &["model.merges[2]", "longer token than any of model.vocab", "publisher's repository"],
    ),
    (
        "the same in the older form",
        |file| {
            file["model"]["vocab"] = json!({"a": 0, "b": 1});
            file["model"]["merges"] = json!(["a b"]);
        },
        &["model.merges[0]", "longer token than any of model.vocab"],
    ),
    (
        "a prefix that is longer than a token",
        |file| file["model"]["continuing_subword_prefix"] = json!("##########################"),
        &["model.continuing_subword_prefix is not empty", "publisher's repository"],
    ),
    (
        "a suffix",
        |file| file["model"]["end_of_word_suffix"] = json!("</w>"),
        &["model.end_of_word_suffix is not empty", "publisher's repository"],
    ),
    (
        "tokens by chance",
        |file| file["model"]["dropout"] = json!(0.1),
        &["model.dropout is set", "publisher's repository"],
    ),
    (
        "no merges and no type, which the library takes for another kind of model",
        |file| {
            let model = file["model"].as_object_mut().expect("a map");
            model.remove("merges");
            model.remove("type");
            model.insert("unk_token".into(), json!("a"));
        },
        &["model.merges is missing", "publisher's repository"],
    ),
    ("no model", |file| drop(file.as_object_mut().map(|file| file.remove("model"))), &["model"]),
];

#[test]
fn tokenizer_files_are_refused_with_the_place() {
    let good = include_str!("data/small_tokenizer.json");
    for (name, damage, says) in TOKENIZERS {
        let mut file: Value = serde_json::from_str(good).expect("valid JSON");
        damage(&mut file);
        refuse_tokenizer(name, file.to_string().as_bytes(), says);
    }
    refuse_tokenizer("empty", b"", &["tokenizer.json", "is empty", "fetch it again"]);
    let cut = &good.as_bytes()[..good.len() / 2];
    refuse_tokenizer("cut short", cut, &["tokenizer.json", "EOF", "fetch it again"]);
    refuse_tokenizer("not UTF-8", b"{\"\xff\": 0}", &["tokenizer.json", "fetch it again"]);
    refuse_tokenizer("deep", &[b'['; 1_000_000], &["tokenizer.json", "fetch it again"]);
}

fn refuse_tokenizer(name: &str, bytes: &[u8], says: &[&str]) {
    let error = Tokenizer::from_bytes(bytes).err();
    let message = error.unwrap_or_else(|| panic!("{name}: is usable")).to_string();
    for word in says {
        assert!(message.contains(word), "{name}: no `{word}` in: {message}");
    }
}

/// Templates that would take all the time or memory there is.
const GREEDY: &[(&str, &str)] = &[
    (
        "loops in loops",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}\
         {% endfor %}{% endfor %}{% endfor %}",
    ),
    (
        "a text that doubles",
        "{% set n = namespace(x='ab') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}\
         {% endfor %}{{ n.x }}",
    ),
    (
        "a printed list that holds itself many times",
        "{% set n = namespace(x=[1]) %}{% for a in range(99) %}{% set n.x = [n.x, n.x] %}\
         {% endfor %}{{ n.x }}",
    ),
    (
        "the same as JSON",
        "{% set n = namespace(x=[1]) %}{% for a in range(99) %}{% set n.x = [n.x, n.x] %}\
         {% endfor %}{{ n.x | tojson }}",
    ),
    (
        "the same as text",
        "{% set n = namespace(x=[1]) %}{% for a in range(40) %}{% set n.x = [n.x, n.x] %}\
         {% endfor %}{{ n.x | string | length }}",
    ),
    (
        "the same joined",
        "{% set n = namespace(x=[1]) %}{% for a in range(40) %}{% set n.x = [n.x, n.x] %}\
         {% endfor %}{{ ', '.join([n.x]) }}",
    ),
    (
        "a text for each character of a text",
        "{% set x = 'a' * 100000 %}{{ x.replace('a', x) | length }}",
    ),
    (
        "a text between the items of a list",
        "{% set x = 'a' * 100000 %}{{ x.join(range(99999)) | length }}",
    ),
    (
        "a list in a list, thousands deep",
        "{% set n = namespace(x=[]) %}{% for a in range(20000) %}{% set n.x = [n.x] %}{% endfor %}",
    ),
    (
        "a map in a map",
        "{% set n = namespace(x={}) %}{% for a in range(20000) %}\
         {% set n.x = {'a': n.x, 'b': [n.x]} %}{% endfor %}",
    ),
    (
        "two at once",
        "{% set n = namespace(x=[]) %}{% for a in range(20000) %}\
         {% set a, n.x = 1, [n.x] %}{% endfor %}",
    ),
    (
        "deep values compared",
        "{% set n = namespace(x=[], y=[]) %}{% for a in range(20000) %}\
         {% set n.x = [n.x] %}{% set n.y = [n.y] %}{% endfor %}{{ n.x == n.y }}{{ n.x < n.y }}",
    ),
    (
        "a namespace in itself",
        "{% set n = namespace() %}{% set m = namespace() %}{% set n.x = n %}{% set m.x = m %}\
         {{ n == m }}",
    ),
    (
        "a namespace in itself, in a list and under a name",
        "{% set n = namespace() %}{% set n.x = [1, {'a': n}] %}{{ {n: 1} }}",
    ),
    (
        "a macro in a namespace",
        "{% macro m() %}{% endmacro %}{% set n = namespace() %}{% set n.m = m %}",
    ),
    (
        "a loop in a namespace",
        "{% set n = namespace() %}{% for a in [1] %}{% set n.l = [loop] %}{% endfor %}",
    ),
    ("a loop in a loop", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
    ("a macro that calls itself", "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}"),
];

#[test]
fn greedy_templates_are_stopped() {
    for (name, source) in GREEDY {
        let template = ChatTemplate::new(source).expect("it compiles");
        match render(&template, "hi") {
            Err(TextError::TemplateRender { .. }) => {}
            other => panic!("{name}: {:?}", other.map(|text| text.len())),
        }
    }
    let template = ChatTemplate::new(GREEDY[0].1).expect("it compiles");
    let message = render(&template, "hi").expect_err("it never ends").to_string();
    assert!(message.contains("line 1") && message.contains("publisher's"), "{message}");
}

/// Lists that refer to lists are made whole, so these end as they would in Python.
#[test]
fn long_chains_of_lists_are_rendered() {
    for (source, expected) in [
        ("{% for a in range(40000) %}{% set n.x = n.x[:] %}{% endfor %}{{ n.x }}", "[1, [2]]"),
        (
            "{% for a in range(40000) %}{% set n.x = [n.x[0], n.x[1][:]] %}{% endfor %}{{ n.x }}",
            "[1, [2]]",
        ),
        ("{% for a in range(40000) %}{% set n.x = n.x * 1 %}{% endfor %}{{ n.x }}", "[1, [2]]"),
        ("{% for a in range(900) %}{% set n.x = n.x + [a] %}{% endfor %}{{ n.x | length }}", "902"),
        (
            "{% set n.x = (1, 2) %}{{ n.x }}{% set n.x = {'a': 1}.items() %}{{ n.x }}",
            "(1, 2)[('a', 1)]",
        ),
        (
            "{% set n.x = range(3) %}{% set n.y = {1: none} %}{{ n.x }}{{ n.y }}",
            "[0, 1, 2]{1: None}",
        ),
        ("{% set n.x = dict(a=1, b=[2]) %}{{ n.x }}{{ n.x.b[0] }}", "{'a': 1, 'b': [2]}2"),
        ("{% set n.x | upper %}é{{ n.x[0] }}{% endset %}{{ n.x ~ n.y }}", "É1"),
    ] {
        let source = format!("{{% set n = namespace(x=[1, [2]]) %}}{source}");
        let template = ChatTemplate::new(&source).expect("it compiles");
        // A long conversation, so that the template may do much.
        let text = render(&template, &"word ".repeat(40_000));
        assert_eq!(text.as_deref().ok(), Some(expected), "{source}");
    }
}

/// What the engine recurses over, once for every few bytes of the template.
#[test]
fn deeply_nested_templates_neither_overflow_nor_take_long() {
    let chain = |start: &str, link: &str, end: &str| {
        let links = 3_900 / link.len();
        format!("{{{{ {start}{}{end} }}}}", link.repeat(links))
    };
    for source in [
        chain("", "not ", "a"),
        chain("", "-", "1"),
        chain("1", "+1", ""),
        chain("a", "~a", ""),
        chain("a", " and a", ""),
        chain("a", "**a", ""),
        chain("a", ".b", ""),
        chain("a", "[0]", ""),
        chain("a", "()", ""),
        chain("a", "|e", ""),
        chain("a", " is defined", ""),
        chain("a", " if a else a", ""),
        chain("", "(", ""),
        chain("", "[", ""),
        format!("{{% for {}a in [1] %}}{{% endfor %}}", "(".repeat(3_900)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(5_000)),
        format!("{}{}", "{% if 1 %}".repeat(5_000), "{% endif %}".repeat(5_000)),
        format!("{{% set x=[1] %}}{}", "{%set x=[x]%}".repeat(2_000)),
        format!(
            "{}{{{{ [x, x] | sort }}}}{{{{ x == x }}}}{{{{ {{x: 1}} }}}}",
            "{%set x=[x]%}".repeat(1_000)
        ),
        format!("{{% set x=[1] %}}{}{{{{ x | length }}}}", "{%set x=x[:]%}".repeat(1_500)),
        format!(
            "{{% macro m(x) %}}{}{{{{ m(x) }}}}{{% endmacro %}}{{{{ m(1) }}}}",
            "{%set x=[[[[x]]]]%}".repeat(500)
        ),
    ] {
        if let Ok(template) = ChatTemplate::new(&source) {
            let _ = render(&template, "hi");
        }
    }
    for (source, says) in [
        ("(".repeat(200_000), "200000 bytes"),
        ("[1, 2] ".repeat(10_000), "70000 bytes that nest more than any template does"),
        (
            format!("a\n{{{{ 'b' }}}}\n{{{{ a{} }}}}", "~a".repeat(2_100)),
            "line 3: a tag of more than",
        ),
        (
            format!("{{% if a{} %}}{{% endif %}}", " or a".repeat(2_100)),
            "line 1: a tag of more than",
        ),
    ] {
        let message = ChatTemplate::new(&source).expect_err("refused").to_string();
        assert!(message.contains(says) && message.contains("publisher's"), "{message}");
    }
    // Long texts are no nesting.
    let source = format!("{{{{ '{}' }}}}{}", "word ".repeat(10_000), "text ".repeat(10_000));
    let template = ChatTemplate::new(&source).expect("it compiles");
    assert_eq!(render(&template, "hi").expect("renders").len(), 100_000);
}

#[test]
fn deeply_nested_messages_and_tools_are_refused() {
    // Making and dropping such values recurses too.
    let roomy = std::thread::Builder::new().stack_size(64 << 20);
    roomy.spawn(refuse_deep_values).expect("a thread").join().expect("no panic");
}

fn refuse_deep_values() {
    let deep = |levels: usize| {
        (0..levels).fold(json!("x"), |value, level| match level % 2 {
            0 => Value::Array(vec![value]),
            _ => Value::Object(Map::from_iter([("a".to_owned(), value)])),
        })
    };
    let template =
        ChatTemplate::new("{{ messages }}{{ tools | tojson }}{{ more }}").expect("compiles");
    let render = |messages: &[Value], tools: &[Value], more: Value| {
        let extra = Map::from_iter([("more".to_owned(), more)]);
        let add_generation_prompt = true;
        let (bos_token, eos_token) = (None, None);
        let input = RenderInput {
            messages,
            tools,
            add_generation_prompt,
            extra: &extra,
            bos_token,
            eos_token,
        };
        template.render(&input)
    };
    for levels in [257, 6_000] {
        let plain = json!({"role": "user", "content": "x"});
        let mut call = json!({"role": "assistant", "tool_calls": [{}]});
        call["tool_calls"][0]["arguments"] = deep(levels);
        for (messages, tools, more, place) in [
            (vec![plain.clone(), call], vec![], json!(1), "messages"),
            (vec![plain.clone()], vec![deep(levels)], json!(1), "tools"),
            (vec![plain.clone()], vec![], deep(levels), "more"),
        ] {
            let message = render(&messages, &tools, more).expect_err(place).to_string();
            assert!(message.contains(&format!("{place}: nested deeper than 256")), "{message}");
        }
    }
    let text = render(&[deep(200)], &[deep(200)], deep(200)).expect("not deep");
    assert_eq!(text.matches('x').count(), 3);
}

/// What a long conversation takes is far from the bound.
#[test]
fn long_conversations_are_rendered() {
    let template = ChatTemplate::new(include_str!("data/qwen3.6.chat_template.jinja"))
        .expect("the published template compiles");
    let long = "word ".repeat(1_000_000);
    assert!(render(&template, &long).expect("renders").len() > 5_000_000);
    let messages: Vec<Value> = (0..4_000)
        .map(|turn| match turn % 2 {
            0 => json!({"role": "user", "content": "Why?"}),
            _ => json!({"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo."}),
        })
        .chain([json!({"role": "user", "content": "And?"})])
        .collect();
    assert!(render_all(&template, &messages).expect("renders").contains("And?"));
}

fn render(template: &ChatTemplate, question: &str) -> Result<String, TextError> {
    render_all(template, &[json!({"role": "user", "content": question})])
}

fn render_all(template: &ChatTemplate, messages: &[Value]) -> Result<String, TextError> {
    template.render(&RenderInput {
        messages,
        tools: &[],
        add_generation_prompt: true,
        extra: &Map::new(),
        bos_token: None,
        eos_token: None,
    })
}
