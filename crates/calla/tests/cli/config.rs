//! Settings from flags, variables and config files, and how they are shown.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{calla, scratch, success, text};

/// A config file of this test's own.
fn config(test: &str, content: &str) -> PathBuf {
    let file = scratch(test).join("config.toml");
    fs::write(&file, content).expect("writable");
    file
}

/// One setting as `calla config` tells it.
fn setting(command: &mut Command, name: &str, key: &str) -> Value {
    let output = command.output().expect("it starts");
    let report: Value = serde_json::from_str(&success(&output)).expect("JSON");
    let setting = &report["commands"][name][key];
    assert!(setting.is_object(), "no {key} of {name} in {report}");
    setting.clone()
}

fn stderr(command: &mut Command, code: i32) -> String {
    let output = command.output().expect("it starts");
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{told}");
    told
}

#[test]
fn a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default() {
    let file = config("precedence", "[serve]\nport = 1001\n");
    let arguments = ["--config", text(&file), "config", "--json", "serve"];
    let port = |command: &mut Command| {
        let setting = setting(command, "serve", "port");
        (setting["value"].clone(), setting["source"].clone())
    };
    assert_eq!(port(&mut calla(&["config", "--json"])), ("8080".into(), "default".into()));
    assert_eq!(port(&mut calla(&arguments)), ("1001".into(), "file".into()));
    let mut with_variable = calla(&arguments);
    with_variable.env("CALLA_PORT", "1002");
    assert_eq!(port(&mut with_variable), ("1002".into(), "environment".into()));
    let mut with_flag = calla(&[&arguments[..], &["--port", "1003"]].concat());
    with_flag.env("CALLA_PORT", "1002");
    assert_eq!(port(&mut with_flag), ("1003".into(), "flag".into()));
}

/// Nobody looks for a mistake in a model that was chosen elsewhere.
#[test]
fn an_error_about_a_model_says_who_chose_it() {
    let file = config("who-chose", "\n[serve]\nmodel = '/from/file'\n");
    let nowhere = scratch("who-chose-nowhere").join("nowhere");
    let by_file = format!("(the model is /from/file, by `model` in {}, line 3)", text(&file));
    let message = stderr(&mut calla(&["serve", "--port", "0", "--config", text(&file)]), 1);
    assert!(message.trim_end().ends_with(&by_file), "{message}");

    for command in [&["inspect"][..], &["doctor"], &["tokens", "hi"], &["chat", "hi"], &["bench"]] {
        let mut with_variable = calla(command);
        with_variable.env("CALLA_MODEL", &nowhere).env("CALLA_CONFIG", &file);
        let message = stderr(&mut with_variable, 1);
        let by_variable = format!(
            "(the model is {}, by the environment variable CALLA_MODEL)",
            nowhere.display()
        );
        assert!(message.trim_end().ends_with(&by_variable), "{command:?}: {message}");
    }
    let mut with_flag = calla(&["chat", "hi", "--model", text(&nowhere)]);
    with_flag.env("CALLA_MODEL", "/elsewhere");
    let message = stderr(&mut with_flag, 1);
    assert!(!message.contains("the model is"), "{message}");
}

/// What the report says is what the commands do.
#[test]
fn commands_run_with_what_the_file_says() {
    let file = config("runs", "model = '/from/file'\n[chat]\nmodel = '/from/table'\n");
    let command =
        |arguments: &[&str]| calla(&[arguments, &["hi", "--config", text(&file)]].concat());
    assert!(stderr(&mut command(&["tokens"]), 1).contains("/from/file"));
    assert!(stderr(&mut command(&["chat"]), 1).contains("/from/table"));
    assert!(stderr(&mut command(&["chat", "--model", "/from/flag"]), 1).contains("/from/flag"));
    let mut with_variable = command(&["chat"]);
    with_variable.env("CALLA_MODEL", "/from/environment");
    assert!(stderr(&mut with_variable, 1).contains("/from/environment"));
}

#[test]
fn what_a_command_requires_may_stand_in_the_file() {
    let out = scratch("required").join("model");
    let content = format!("[synth]\nshape = 'tiny'\nlayers = 1\nout = '{}'\n", out.display());
    let file = config("required-file", &content);
    success(&calla(&["synth", "--config", text(&file)]).output().expect("it starts"));
    assert!(out.join("model.safetensors").exists());
}

#[test]
fn the_table_of_a_command_wins_and_a_group_s_table_is_for_all_in_it() {
    let content = "threads = 1\n[eval]\nthreads = 2\n[eval.agree]\nprecision = 'exact'\n";
    let file = config("tables", content);
    let shown = |name: &str, key: &str| {
        setting(&mut calla(&["config", "--json", "--config", text(&file)]), name, key)
    };
    assert_eq!(
        (&shown("chat", "threads")["value"], &shown("chat", "threads")["line"]),
        (&"1".into(), &1.into())
    );
    assert_eq!(shown("eval agree", "threads")["value"], "2");
    assert_eq!(shown("eval agree", "precision")["value"], "exact");
    assert_eq!(shown("bench", "precision")["source"], "default");
}

#[test]
fn the_file_is_found_in_its_usual_place_or_where_it_is_named() {
    let home = scratch("home");
    for (folder, threads) in [(".config/calla", "3"), ("xdg/calla", "4"), ("named", "5")] {
        fs::create_dir_all(home.join(folder)).expect("writable");
        let content = format!("threads = {threads}\n");
        fs::write(home.join(folder).join("config.toml"), content).expect("writable");
    }
    let threads = |command: &mut Command| setting(command, "chat", "threads")["value"].clone();
    let at_home = || {
        let mut command = calla(&["config", "--json", "chat"]);
        command.env("HOME", &home);
        command
    };
    assert_eq!(threads(&mut at_home()), "3");
    assert_eq!(threads(at_home().env("XDG_CONFIG_HOME", home.join("xdg"))), "4");
    assert_eq!(threads(at_home().env("XDG_CONFIG_HOME", home.join("empty"))), Value::Null);
    let named = home.join("named/config.toml");
    assert_eq!(threads(at_home().env("CALLA_CONFIG", &named)), "5");
    assert_eq!(threads(at_home().env("CALLA_CONFIG", "/dev/null")), Value::Null);
    // A file that is asked for must be there.
    let missing = stderr(at_home().env("CALLA_CONFIG", home.join("nowhere.toml")), 2);
    assert!(missing.contains("nowhere.toml"), "{missing}");
}

#[test]
fn a_mistake_in_the_file_is_told_with_line_key_and_what_is_allowed() {
    for (name, content, line, words) in [
        ("syntax", "threads = \n", 1, &["string"][..]),
        ("twice", "threads = 1\nthreads = 2\n", 2, &["duplicate"]),
        ("key", "\n[serve]\nprot = 1\n", 3, &["`prot` in [serve]", "port", "max-queue"]),
        ("other", "[tokens]\nport = 1\n", 2, &["`port` in [tokens]", "model", "json"]),
        ("top", "modell = 'x'\n", 1, &["`modell`", "model", "serve"]),
        ("table", "[srve]\nport = 1\n", 1, &["`srve`", "tables are", "serve"]),
        ("no-table", "serve = 1\n", 1, &["[serve]"]),
        ("type", "[serve]\nport = '80'\n", 2, &["`port` in [serve]", "an integer", "a string"]),
        ("float", "threads = 1.5\n", 1, &["`threads`", "an integer", "a float"]),
        ("text", "model = 3\n", 1, &["`model`", "a string"]),
        ("switch", "[chat]\nthink = 'yes'\n", 2, &["`think`", "true or false"]),
        ("negation", "[chat]\nno-think = true\n", 2, &["think = false"]),
        ("list", "threads = [1, 2]\n", 1, &["`threads`", "an integer", "an array"]),
        ("inside", "[bench]\ncontexts = [8, 'x']\n", 2, &["`contexts`", "list of them"]),
        ("range", "[serve]\nport = 70000\n", 2, &["70000", "0..=65535"]),
        ("ratio", "\n\ntemperature = 3\n", 3, &["`temperature`", "from 0 to 2"]),
        ("zero", "threads = 0\n", 1, &["`threads`", "zero"]),
        ("choice", "precision = 'rough'\n", 1, &["\"rough\"", "default, exact"]),
        ("shape", "[synth]\nshape = 'huge'\n", 2, &["qwen3.6-35b-a3b"]),
        ("count", "verbose = 300\n", 1, &["0..=255"]),
        ("empty", "[serve]\napi-key = ''\n", 2, &["`api-key`", "not be empty"]),
        ("itself", "config = 'x'\n", 1, &["`config`"]),
        ("both", "[serve]\napi-key = 'a'\napi-key-file = 'b'\n", 3, &["api-key", "line 2"]),
        ("huge", "threads = 99999999999999999999999999999999999999999\n", 1, &["`threads`"]),
    ] {
        let file = config(&format!("mistake-{name}"), content);
        // Whatever the command: a mistake does not wait for the day it matters.
        let told = stderr(&mut calla(&["tokens", "hi", "--config", text(&file)]), 2);
        assert!(told.starts_with(&format!("calla: {}:{line}: ", file.display())), "{name}: {told}");
        for word in words {
            assert!(told.contains(word), "{name}: {word} is missing from {told}");
        }
        assert_eq!(told.lines().count(), 1, "{name}: {told}");
    }
}

#[test]
fn a_file_that_is_no_text_is_refused() {
    let file = config("binary", "");
    fs::write(&file, b"threads = \xff\n").expect("writable");
    let told = stderr(&mut calla(&["config", "--config", text(&file)]), 2);
    assert!(told.contains("config.toml") && told.contains("UTF-8"), "{told}");
    fs::write(&file, "#".repeat((1 << 20) + 1)).expect("writable");
    let long = stderr(&mut calla(&["config", "--config", text(&file)]), 2);
    assert!(long.contains("more than 1048576 bytes"), "{long}");
    let endless = stderr(&mut calla(&["config", "--config", "/dev/zero"]), 2);
    assert!(endless.contains("/dev/zero: not a regular file"), "{endless}");
}

#[test]
fn a_stronger_source_rules_out_what_excludes_it() {
    let file = config("rivals", "[serve]\napi-key-file = '/nowhere/key'\n[chat]\nthink = true\n");
    let serve = ["config", "--config", text(&file), "--json", "serve"];
    let shown = |arguments: &[&str], name: &str, key: &str| {
        setting(&mut calla(arguments), name, key)["value"].clone()
    };
    assert_eq!(shown(&serve, "serve", "api-key-file"), "/nowhere/key");
    let with_flag = [&serve[..], &["--api-key", "k"]].concat();
    assert_eq!(shown(&with_flag, "serve", "api-key-file"), Value::Null);
    let mut with_variable = calla(&serve);
    with_variable.env("CALLA_API_KEY", "k");
    assert_eq!(setting(&mut with_variable, "serve", "api-key-file")["value"], Value::Null);
    // So too between a flag and a variable.
    let mut both = calla(&["config", "--json", "serve", "--api-key", "k"]);
    both.env("CALLA_API_KEY_FILE", "/nowhere/key");
    assert_eq!(setting(&mut both, "serve", "api-key-file")["value"], Value::Null);

    let chat = ["config", "--config", text(&file), "--json", "chat"];
    assert_eq!(shown(&chat, "chat", "think"), "true");
    assert_eq!(shown(&[&chat[..], &["--no-think"]].concat(), "chat", "think"), "false");
}

#[test]
fn whether_to_think_may_stand_in_the_file() {
    let prompt_tokens = |content: &str, flags: &[&str]| {
        let file = config("think", content);
        let chat = ["chat", "Hello", "--max-context", "2", "--config", text(&file)];
        stderr(&mut calla(&[&chat[..], flags].concat()), 1)
    };
    let (with, without) = (prompt_tokens("", &["--think"]), prompt_tokens("", &["--no-think"]));
    assert_ne!(with, without);
    let off = "[chat]\nthink = false\n";
    assert_eq!(prompt_tokens(off, &[]), without);
    assert_eq!(prompt_tokens(off, &["--think"]), with);
    assert_eq!(prompt_tokens("[chat]\nthink = true\n", &["--no-think"]), without);
}

#[test]
fn lists_switches_and_paths_at_home_may_stand_in_the_file() {
    let content = "verbose = 1\n[bench]\ncontexts = [8, 70]\njson = true\nmodel = '~/m'\n";
    let file = config("kinds", content);
    let shown = |key: &str| {
        let mut command = calla(&["config", "--config", text(&file), "--json", "bench"]);
        setting(command.env("HOME", "/home/me"), "bench", key)["value"].clone()
    };
    assert_eq!(shown("contexts"), serde_json::json!(["8", "70"]));
    assert_eq!(shown("json"), "true");
    assert_eq!(shown("model"), "/home/me/m");
    let report = success(&calla(&["config", "--config", text(&file)]).output().expect("it starts"));
    assert!(
        report.lines().any(|line| line.contains("verbose") && line.ends_with("file, line 1")),
        "{report}"
    );
}

#[test]
fn secrets_are_not_shown() {
    let file = config("secret", "[serve]\napi-key = 'from-file'\n");
    for (arguments, variable) in [
        (&["config", "--config", text(&file)][..], None),
        (&["config", "--config", text(&file), "--json"], None),
        (&["config", "serve"], Some("from-variable")),
        (&["config", "serve", "--api-key", "from-flag"], None),
    ] {
        let mut command = calla(arguments);
        command.envs(variable.map(|value| ("CALLA_API_KEY", value)));
        let shown = success(&command.output().expect("it starts"));
        assert!(shown.contains("(hidden)") && !shown.contains("from-"), "{shown}");
    }
    let file = config("secret-type", "[serve]\napi-key = ['from-file']\n");
    let told = stderr(&mut calla(&["config", "--config", text(&file)]), 2);
    assert!(!told.contains("from-file"), "{told}");
}

#[test]
fn help_shows_the_program_s_own_defaults_whatever_the_file_says() {
    let file = config("help", "[serve]\nport = 1234\n");
    let broken = config("help-broken", "][");
    for file in [&file, &broken] {
        let mut help = calla(&["serve", "--help", "--config", text(file)]);
        let help = success(&help.output().expect("it starts"));
        assert!(help.contains("8080") && !help.contains("1234"), "{help}");
        let mut version = calla(&["--version"]);
        success(&version.env("CALLA_CONFIG", file).output().expect("it starts"));
    }
}

#[test]
fn a_bad_variable_is_told_by_its_name() {
    let mut command = calla(&["serve"]);
    let told = stderr(command.env("CALLA_PORT", "tcp://10.0.0.1:80"), 2);
    assert!(told.contains("CALLA_PORT") && told.contains("--port"), "{told}");
    // An empty one is no way to say nothing: an empty key must not open a server.
    for name in ["CALLA_API_KEY", "CALLA_MODEL", "CALLA_CONFIG"] {
        let told = stderr(calla(&["serve"]).env(name, ""), 2);
        assert!(told.contains(name), "{told}");
    }
    let told = stderr(&mut calla(&["serve", "--port", "x"]), 2);
    assert!(!told.contains("CALLA_PORT"), "{told}");
    let told = stderr(calla(&["tokens", "hi"]).env("CALLA_LOG", "calla=loud"), 2);
    assert!(told.contains("CALLA_LOG"), "{told}");
}

#[test]
fn variables_that_nothing_reads_are_pointed_out() {
    let mut command = calla(&["config", "tokens"]);
    command.env("CALLA_PROT", "1").env("CALLA_SIMD", "").env("CALLA_PORT", "1");
    let output = command.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("CALLA_PROT") && told.lines().count() == 1, "{told}");
}

#[test]
fn the_committed_page_of_settings_is_what_the_flags_say() {
    let generated = success(&calla(&["config", "--reference"]).output().expect("it starts"));
    let committed = fs::read_to_string(repository().join("docs/env.md")).expect("committed");
    assert!(
        generated == committed,
        "docs/env.md is not what the flags say. Write it anew, from the repository's root:\n\
         cargo run -p calla -- config --reference > docs/env.md"
    );
}

/// A variable that is read somewhere stands on the page of settings.
#[test]
fn every_variable_of_the_source_is_on_the_page() {
    let page = fs::read_to_string(repository().join("docs/env.md")).expect("committed");
    let mut names = Vec::new();
    for source in sources(&repository().join("crates")) {
        let text = fs::read_to_string(&source).expect("UTF-8");
        for line in text.lines().filter(|line| !line.contains("env!(")) {
            let words = line.split('"').filter(|word| is_variable(word));
            names.extend(words.map(str::to_owned));
        }
    }
    assert!(names.iter().any(|name| name == "CALLA_SIMD"), "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/env.md does not tell of {name}");
    }
}

fn is_variable(word: &str) -> bool {
    let known = ["CALLA_", "HF_", "XDG_", "NO_", "HTTPS_"];
    known.iter().any(|start| word.len() > start.len() && word.starts_with(start))
        && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
}

/// The Rust files of the crates, without tests and build scripts.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() && !path.ends_with("tests") && !path.ends_with("target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("build.rs") {
            found.push(path);
        }
    }
    found
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
