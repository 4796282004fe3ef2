//! Model folders that cannot be used, as a user of the program sees them.

use std::{fs, path::Path};

use crate::{failure, scratch, text, tiny};

#[test]
fn another_models_tokenizer_is_refused() {
    let model = scratch("another-tokenizer");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(tiny("dense").join(file), model.join(file)).expect("copied");
    }
    for file in ["tokenizer.json", "chat_template.jinja"] {
        fs::copy(seedling().join(file), model.join(file)).expect("copied");
    }
    let message = failure(&["chat", "hi", "--model", text(&model)], 1);
    for word in ["tokenizer.json", "up to 4095", "vocab_size 320", "publisher's repository"] {
        assert!(message.contains(word), "{message}");
    }
}

/// What would make every answer fail is found when the model is loaded, with the file's name.
#[test]
fn small_files_that_cannot_be_are_named() {
    let model = scratch("small-files");
    for (file, content, says) in [
        ("generation_config.json", r#"{"temperature": -5}"#, "temperature: -5, expected in [0, 2]"),
        ("generation_config.json", r#"{"eos_token_id": 4096}"#, "4096 is outside the vocabulary"),
        ("generation_config.json", "[1]", "not a JSON object"),
        ("tokenizer_config.json", "[1]", "not a JSON object"),
        ("tokenizer_config.json", "{", "EOF"),
        ("chat_template.jinja", "{# nothing #}", "makes nothing of a question"),
        ("chat_template.jinja", "{{ 1 + }}", "line 1"),
    ] {
        for entry in fs::read_dir(seedling()).expect("readable").flatten() {
            fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
        }
        fs::write(model.join(file), content).expect("writable");
        let message = failure(&["chat", "hi", "--model", text(&model)], 1);
        let place = if says == "line 1" { "chat template" } else { file };
        assert!(message.contains(place) && message.contains(says), "{file}: {message}");
    }
}

/// It is a folder's name that leads nowhere, not the name of a model on the hub.
#[cfg(unix)]
#[test]
fn a_link_in_a_circle_is_no_model_to_pull() {
    let folder = scratch("circle");
    std::os::unix::fs::symlink("model", folder.join("model")).expect("linked");
    let output = crate::calla(&["inspect", "--model", "circle/model"])
        .current_dir(folder.parent().expect("it is in a folder"))
        .output()
        .expect("it starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("circle/model") && !message.contains("pull"), "{message}");
    assert!(message.contains("symbolic link"), "{message}");
}

#[test]
fn a_name_in_a_file_does_not_steer_the_terminal() {
    let model = scratch("escape");
    let config = r#"{"model_type": "\u001b[2Jllama"}"#;
    fs::write(model.join("config.json"), config).expect("writable");
    let message = failure(&["inspect", "--model", text(&model)], 1);
    assert!(message.contains("\\u{1b}[2Jllama") && !message.contains('\u{1b}'), "{message}");
}

/// The server has mapped its weights when it is ready; the request is what reads them.
#[cfg(unix)]
#[test]
fn a_model_that_is_cut_while_it_is_served_is_named() {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        net::TcpStream,
        time::Duration,
    };

    let model = scratch("cut-while-served").join("model");
    fs::create_dir(&model).expect("created");
    for entry in fs::read_dir(seedling()).expect("readable").flatten() {
        fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
    }
    let log = model.with_file_name("log");
    let mut server = crate::calla(&["serve", "--port", "0", "--model", text(&model)])
        .stderr(File::create(&log).expect("writable"))
        .spawn()
        .expect("it starts");
    let address = loop {
        let log = fs::read_to_string(&log).expect("readable");
        if let Some((_, rest)) = log.split_once("ready address=")
            && let Some((address, _)) = rest.split_once([' ', '\n'])
        {
            break address.to_owned();
        }
        assert!(server.try_wait().expect("known").is_none(), "it ended: {log}");
        std::thread::sleep(Duration::from_millis(20));
    };

    let weights = model.join("model.safetensors");
    File::options().write(true).open(&weights).and_then(|file| file.set_len(0)).expect("cut");
    let body = r#"{"model": "model", "prompt": "Hello", "max_tokens": 4}"#;
    let mut connection = TcpStream::connect(&address).expect("it listens");
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    // The process ends before it can answer.
    let _ = connection.read_to_end(&mut Vec::new());

    let status = server.wait().expect("it ends");
    let log = fs::read_to_string(&log).expect("readable");
    assert_eq!(status.code(), Some(1), "{status}: {log}");
    let wanted = format!("calla: {}: cannot be read any more", weights.display());
    assert!(log.contains(&wanted), "{log}");
}

fn seedling() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/seedling"))
}
