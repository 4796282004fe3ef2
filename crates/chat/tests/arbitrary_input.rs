//! Whatever bytes stand in a checkpoint's files: reading them does not panic, does come to an end,
//! and takes no more memory than a few times their length. `fuzz/` looks longer for the same.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ops::Range,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicIsize, Ordering::Relaxed},
    },
};

use calla_engine::{
    checkpoint::{Tensors, check_config, check_unquantised_config, shard_names},
    model::Bytes,
};
use calla_text::{ChatTemplate, RenderInput, Tokenizer};
use proptest::{prelude::*, sample::Index, test_runner::RngSeed};
use serde_json::{Map, Value, json};

/// Counts the memory that this thread holds, and that of the threads which tests start: only chat
/// templates have any.
struct Counting;

thread_local! {
    static RUNS_TEST: Cell<bool> = const { Cell::new(false) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}
static STARTED_HELD: AtomicIsize = AtomicIsize::new(0);
static STARTED_PEAK: AtomicIsize = AtomicIsize::new(0);

// Another thread may give back what this one took.
fn count(change: isize) {
    if RUNS_TEST.get() {
        HELD.set(HELD.get() + change);
        PEAK.set(PEAK.get().max(HELD.get()));
    } else {
        let held = STARTED_HELD.fetch_add(change, Relaxed) + change;
        STARTED_PEAK.fetch_max(held, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there while one is copied to the other.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: passed on from the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a reader may take for each byte of its input: `[0,0,` has two bytes an element, and an
/// element of unknown type has about eighty, held twice while its list grows.
const BYTES_PER_BYTE: usize = 128;

/// What reading may take for any input: the caches of a tokenizer.
const BYTES_ALWAYS: usize = 1 << 20;

/// The same for a template, for what it may make before it has seen anything (13 MB, in use twice).
const BYTES_OF_TEMPLATE: usize = 32 << 20;

/// Runs `read` and looks at what it took at most.
fn bounded<T>(input_len: usize, read: impl FnOnce() -> T) -> T {
    let before = HELD.get();
    PEAK.set(before);
    let result = read();
    check(PEAK.get() - before, BYTES_ALWAYS + BYTES_PER_BYTE * input_len);
    result
}

/// The same for `work` that starts a thread.
fn within<T>(allowed: usize, work: impl FnOnce() -> T) -> T {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (own, started) = (HELD.get(), STARTED_HELD.load(Relaxed));
    PEAK.set(own);
    STARTED_PEAK.store(started, Relaxed);
    let result = work();
    let taken = PEAK.get() - own + STARTED_PEAK.load(Relaxed) - started;
    drop(alone);
    check(taken, allowed);
    result
}

fn check(taken: isize, allowed: usize) {
    assert!(taken <= allowed as isize, "took {taken} bytes, where {allowed} are allowed");
}

/// A change to a file; places are parts of its length.
#[derive(Debug, Clone)]
enum Edit {
    Put(Index, u8),
    Insert(Index, &'static str),
    Remove(Index, Index),
    Repeat(Index, Index),
    Cut(Index),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let word = proptest::sample::select(WORDS);
    let edit = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        4 => (any::<Index>(), word).prop_map(|(at, word)| Edit::Insert(at, word)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Edit::Remove(a, b)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Edit::Repeat(a, b)),
        1 => any::<Index>().prop_map(Edit::Cut),
    ];
    proptest::collection::vec(edit, 1..6)
}

/// What formats and templates are made of.
const WORDS: &[&str] = &[
    "null",
    "-1",
    "0",
    "18446744073709551615",
    "1e999",
    "\"\"",
    "[]",
    "{}",
    ",",
    ":",
    "\"",
    "[",
    "{",
    "}",
    "]",
    "\\u0000",
    "\\ud800",
    "{%",
    "%}",
    "{{",
    "}}",
    "{% for a in messages %}",
    "{% endfor %}",
    "{% if x %}",
    "| tojson",
    " ~ x",
    "*",
    "[::-1]",
    "messages",
    "\u{feff}",
    "é",
];

fn edited(file: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for edit in edits {
        let place = |at: &Index| at.index(bytes.len() + 1);
        match edit {
            Edit::Put(at, byte) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Edit::Put(..) => {}
            Edit::Insert(at, word) => {
                let at = place(at);
                bytes.splice(at..at, word.bytes());
            }
            Edit::Remove(a, b) => drop(bytes.drain(range(place(a), place(b)))),
            Edit::Repeat(a, b) => {
                let part = bytes[range(place(a), place(b))].to_vec();
                bytes.extend(part);
            }
            Edit::Cut(at) => bytes.truncate(place(at)),
        }
    }
    bytes
}

fn range(a: usize, b: usize) -> Range<usize> {
    a.min(b)..a.max(b)
}

/// Any bytes, or a good file with changes.
fn file(good: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => proptest::collection::vec(any::<u8>(), 0..2_000),
        1 => proptest::collection::vec(proptest::sample::select(WORDS), 0..200)
            .prop_map(|words| words.concat().into_bytes()),
        6 => edits().prop_map(move |edits| edited(good, &edits)),
    ]
}

/// A good JSON file, some of whose values are others: what parses gets further than what does not.
fn json_file(good: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let good: Value = serde_json::from_slice(good).expect("valid JSON");
    let change = (any::<Index>(), proptest::sample::select(VALUES));
    proptest::collection::vec(change, 1..4).prop_map(move |changes| {
        let mut file = good.clone();
        for (at, value) in changes {
            let at = at.index(nodes(&file));
            let value = serde_json::from_str(value).expect("valid JSON");
            *node(&mut file, &mut { at }).expect("it was counted") = value;
        }
        file.to_string().into_bytes()
    })
}

const VALUES: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1",
    "4294967295",
    "18446744073709551615",
    "1e300",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ud83e\\udd80\"",
    "\"(\"",
    "[]",
    "{}",
    "[0]",
    "[[]]",
    "{\"type\": \"NFC\"}",
];

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(map) => map.values().map(nodes).sum(),
        _ => 0,
    }
}

/// The value that is the n-th when each is counted before what it holds.
fn node<'a>(value: &'a mut Value, n: &mut usize) -> Option<&'a mut Value> {
    if *n == 0 {
        return Some(value);
    }
    *n -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| node(item, n)),
        Value::Object(map) => map.values_mut().find_map(|item| node(item, n)),
        _ => None,
    }
}

fn either(good: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![file(good), json_file(good)]
}

/// What each test asks for first. The same cases every time, so that a failure is this change's; `fuzz/` finds new ones.
fn config(cases: u32) -> ProptestConfig {
    RUNS_TEST.set(true);
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
}

const SHARD: &[u8] = include_bytes!("../../engine/tests/data/bf16/groups.safetensors");
const CONFIG: &[u8] = include_bytes!("../../engine/tests/data/tiny/moe_override/config.json");
const INDEX: &[u8] =
    include_bytes!("../../engine/tests/data/tiny/moe_sharded/model.safetensors.index.json");
const TEMPLATE: &[u8] = include_bytes!("../../../models/seedling/chat_template.jinja");

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn safetensors(
        header in either(&SHARD[8..header_end(SHARD)]),
        says in proptest::option::weighted(0.1, any::<u64>()),
    ) {
        let len = says.unwrap_or(header.len() as u64).to_le_bytes();
        let bytes = [&len, &*header, &SHARD[header_end(SHARD)..]].concat();
        let mapped = Bytes::new(std::sync::Arc::new(bytes.clone()));
        if let Ok(tensors) = bounded(bytes.len(), || Tensors::parse("f".as_ref(), &mapped)) {
            for (_, tensor) in tensors.iter() {
                bounded(2 * tensor.bytes.len(), || tensor.to_f32());
            }
        }
    }

    #[test]
    fn configurations(bytes in either(CONFIG)) {
        let path = Path::new("config.json");
        let _ = bounded(bytes.len(), || check_config(path, &bytes));
        let _ = bounded(bytes.len(), || check_unquantised_config(path, &bytes));
    }

    #[test]
    fn indices(bytes in either(INDEX)) {
        let names = bounded(bytes.len(), || shard_names(Path::new("index.json"), &bytes));
        for name in names.into_iter().flatten() {
            prop_assert_eq!(Path::new(&name).components().count(), 1, "{}", name);
        }
    }

    #[test]
    fn templates(bytes in file(TEMPLATE)) {
        let source = String::from_utf8_lossy(&bytes);
        let allowed = BYTES_ALWAYS + BYTES_PER_BYTE * source.len();
        if let Ok(template) = within(allowed, || ChatTemplate::new(&source)) {
            let messages = conversation();
            let input = RenderInput {
                messages: messages.as_array().expect("a list"),
                tools: &[],
                add_generation_prompt: true,
                extra: &Map::new(),
                bos_token: None,
                eos_token: Some("<|im_end|>"),
            };
            let _ = within(BYTES_OF_TEMPLATE, || template.render(&input));
        }
    }

    #[test]
    fn tokenizers(bytes in either(small_tokenizer())) {
        if let Ok(tokenizer) = bounded(bytes.len(), || Tokenizer::from_bytes(&bytes)) {
            for text in ["<|im_start|>user\nWhat is 2 + 2?", "\u{0}é🦀  \n\n"] {
                if let Ok(ids) = bounded(bytes.len(), || tokenizer.encode(text)) {
                    prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                }
                let _ = bounded(bytes.len(), || tokenizer.encode_ordinary(text));
            }
        }
    }
}

/// Were memory of the template's thread not counted, every template would be within bounds.
#[test]
fn what_templates_take_is_counted() {
    RUNS_TEST.set(true);
    let template = within(1 << 30, || ChatTemplate::new("{{ 'x' * 1000000 }}"));
    let template = template.expect("it compiles");
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let input = RenderInput {
            messages: &[],
            tools: &[],
            add_generation_prompt: true,
            extra: &Map::new(),
            bos_token: None,
            eos_token: None,
        };
        within(100_000, || template.render(&input))
    }));
    assert!(taken.is_err());
}

/// Where the data of a safetensors file begins.
fn header_end(file: &[u8]) -> usize {
    let len = u64::from_le_bytes(file[..8].try_into().expect("a length"));
    8 + usize::try_from(len).expect("it is short")
}

fn conversation() -> Value {
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4", "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [2.0]}}},
        ]},
        {"role": "tool", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ])
}

/// The committed tokenizer with the bytes and the markers alone, so that a case takes no time.
fn small_tokenizer() -> &'static [u8] {
    let whole = include_str!("../../text/tests/data/small_tokenizer.json");
    let mut file: Value = serde_json::from_str(whole).expect("valid JSON");
    let vocabulary = file["model"]["vocab"].as_object_mut().expect("a map");
    vocabulary.retain(|_, id| id.as_u64().is_some_and(|id| id < 300));
    let next = vocabulary.len();
    let known: Vec<String> = vocabulary.keys().cloned().collect();
    let is_known = |part: &Value| part.as_str().is_some_and(|part| known.iter().any(|k| k == part));
    let merges = file["model"]["merges"].as_array_mut().expect("a list");
    merges.retain(|pair| {
        let parts = [&pair[0], &pair[1]];
        let whole: String = parts.iter().filter_map(|part| part.as_str()).collect();
        parts.into_iter().all(is_known) && known.contains(&whole)
    });
    let added = file["added_tokens"].as_array_mut().expect("a list");
    for (id, token) in added.iter_mut().enumerate() {
        token["id"] = json!(next + id);
    }
    Tokenizer::from_bytes(file.to_string().as_bytes()).expect("still usable");
    file.to_string().into_bytes().leak()
}
