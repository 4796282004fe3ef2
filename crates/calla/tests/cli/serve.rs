//! serve as a process: where it listens, whom it lets in, and how it leaves. What it answers is
//! tested in calla-server.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
};

use crate::{calla, failure, scratch, seedling, text};

#[test]
fn it_serves_until_it_is_told_to_stop() {
    let (mut server, address) = start(&[]);
    let health = get(&address, "/health", "");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let models = get(&address, "/v1/models", "");
    assert!(models.contains("seedling"), "{models}");

    let id = i32::try_from(server.id()).expect("a process id");
    let asked = std::process::Command::new("kill").arg(id.to_string()).status();
    assert!(asked.expect("kill is there").success());
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn the_key_of_a_file_is_asked_for() {
    let key = scratch("key").join("key");
    fs::write(&key, "s3cret\n").expect("writable");
    let (mut server, address) = start(&["--api-key-file", text(&key)]);
    assert!(get(&address, "/v1/models", "").starts_with("HTTP/1.1 401"));
    let models = get(&address, "/v1/models", "Authorization: Bearer s3cret\r\n");
    assert!(models.starts_with("HTTP/1.1 200"), "{models}");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn a_port_that_is_taken_is_one_clear_line() {
    let (mut server, address) = start(&[]);
    let (_, port) = address.rsplit_once(':').expect("an address and a port");
    let message = failure(&["serve", "--port", port], 1);
    assert!(message.starts_with("calla: ") && message.contains(&address), "{message}");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn an_empty_key_file_does_not_open_the_door() {
    let key = scratch("empty-key").join("key");
    fs::write(&key, "\n").expect("writable");
    let message = failure(&["serve", "--api-key-file", text(&key)], 1);
    assert!(message.contains("empty"), "{message}");
}

#[test]
fn a_model_that_cannot_be_is_noticed_before_the_port_opens() {
    let nowhere = scratch("no-model").join("nowhere");
    let message = failure(&["serve", "--port", "0", "--model", text(&nowhere)], 1);
    assert!(message.contains(text(&nowhere)) && !message.contains("the model is"), "{message}");
    assert!(!message.contains("listening"), "{message}");
    let context = ["serve", "--port", "0", "--max-context", "99999999"];
    let message = failure(&context, 1);
    assert!(message.contains("--max-context") && !message.contains("listening"), "{message}");
}

#[test]
fn a_model_that_cannot_talk_is_noticed_before_the_port_opens() {
    let bad = [
        ("tokenizer.json", "", "it is empty"),
        ("chat_template.jinja", "{% for %}", "does not compile"),
        ("chat_template.jinja", "{{ raise_exception('no') }}", "refused the conversation"),
        ("generation_config.json", r#"{"temperature": -1}"#, "temperature"),
    ];
    for (number, (file, content, words)) in bad.into_iter().enumerate() {
        let model = seedling(&format!("no-words-{number}"));
        fs::write(model.join(file), content).expect("writable");
        let message = failure(&["serve", "--port", "0", "--model", text(&model)], 1);
        assert!(message.contains(words) && message.contains(text(&model)), "{message}");
        assert!(!message.contains("listening"), "{message}");
    }
}

/// A server on a free port that is ready, and its address.
fn start(arguments: &[&str]) -> (Child, String) {
    let mut server = calla(&[&["serve", "--port", "0"], arguments].concat())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut log = BufReader::new(server.stderr.take().expect("piped"));
    let mut seen = String::new();
    let address = loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).expect("UTF-8"), 0, "it ended: {seen}");
        if let Some((_, rest)) = line.split_once("ready address=") {
            break rest.split_whitespace().next().expect("an address").to_owned();
        }
        seen.push_str(&line);
    };
    // Nobody reads on: a full pipe must not stop the server.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    (server, address)
}

/// One request on a connection of its own; the whole answer.
fn get(address: &str, path: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(address).expect("it listens");
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"
    )
    .expect("it reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers and closes");
    answer
}
