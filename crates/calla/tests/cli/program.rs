//! What the program tells of itself: completions, manual pages, version, examples.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::{calla, failure, json, scratch, stdout, success, text};

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

#[test]
fn completions_know_every_command() {
    let commands = commands();
    assert!(commands.contains(&vec!["eval".into(), "agree".into()]), "{commands:?}");
    for shell in SHELLS {
        let script = stdout(&["completions", shell]);
        for name in commands.iter().flatten() {
            assert!(script.contains(name), "{shell}: {name} is missing");
        }
        assert!(script.contains("max-context"), "{shell}");
    }
    let told = failure(&["completions", "csh"], 2);
    assert!(SHELLS.iter().all(|shell| told.contains(shell)), "{told}");
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let script = scratch("completions").join("calla.bash");
    fs::write(&script, stdout(&["completions", "bash"])).expect("writable");
    for (words, expected) in [
        ("calla ser", "serve"),
        ("calla serve --max-q", "--max-queue"),
        ("calla chat --precision ex", "exact"),
        ("calla eval ag", "agree"),
    ] {
        let ask = format!(
            "source '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _calla calla \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output();
        let completed = success(&output.expect("bash is there"));
        assert_eq!(completed.trim(), expected, "{words}");
    }
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let folder = scratch("man").join("share/man1");
    let told = stdout(&["man", text(&folder)]);
    let mut names = vec!["calla".to_owned()];
    names.extend(commands().iter().map(|path| format!("calla-{}", path.join("-"))));
    assert!(told.contains(&format!("{} pages", names.len())), "{told}");
    assert_eq!(fs::read_dir(&folder).expect("made").count(), names.len());
    for name in &names {
        let page = fs::read_to_string(folder.join(format!("{name}.1"))).expect("made");
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
        let examples = page.split_once(".SH EXAMPLES\n.nf\n").map(|(_, examples)| examples);
        let shown = examples.is_some_and(|examples| examples.lines().any(|l| l.contains("calla ")));
        assert!(shown, "{name}: {page}");
    }
    let chat = fs::read_to_string(folder.join("calla-chat.1")).expect("made");
    assert!(chat.contains("CALLA_MODEL") && chat.contains("\\-\\-system"), "{chat}");
    assert_eq!(stdout(&["man"]), fs::read_to_string(folder.join("calla.1")).expect("made"));
}

#[test]
fn pages_that_cannot_be_written_are_told_with_their_folder() {
    let file = scratch("man-file").join("file");
    fs::write(&file, "").expect("writable");
    let told = failure(&["man", text(&file)], 1);
    assert!(told.contains(text(&file)), "{told}");
}

#[test]
fn the_version_tells_how_the_program_was_built() {
    let long = stdout(&["--version"]);
    let portable = ["portable", "cpu", "reference", std::env::consts::ARCH];
    for word in [env!("CARGO_PKG_VERSION"), "revision: ", "target: "].iter().chain(&portable) {
        assert!(long.contains(word), "{word} is missing from {long}");
    }
    assert_eq!(stdout(&["version", "-v"]), long);
    let short = format!("calla {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((stdout(&["-V"]), stdout(&["version"])), (short.clone(), short));

    let build = json(&["version", "--json"]);
    let simd = if cfg!(target_arch = "x86_64") { "avx2" } else { "portable" };
    assert!(
        build["instruction_sets"].as_array().expect("a list").contains(&simd.into()),
        "{build}"
    );
    if let Some(revision) = build["revision"].as_str() {
        assert!(revision.len() >= 7 && revision.bytes().all(|b| b.is_ascii_hexdigit()), "{build}");
    }
    assert!(long.contains(build["target"].as_str().expect("text")), "{build}");
}

/// Runs what the help shows, as far as it needs no network, no other model and no long time.
#[test]
fn examples_of_the_help_work() {
    let place = scratch("examples");
    fs::write(place.join("notes.txt"), "Buy milk.\n").expect("writable");
    let program = Path::new(env!("CARGO_BIN_EXE_calla")).parent().expect("it stands in a folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut ran = 0;
    for example in commands().iter().flat_map(|command| examples(command)) {
        if NOT_RUN.iter().any(|part| example.contains(part)) {
            continue;
        }
        let output = Command::new("sh")
            .args(["-ec", &example])
            .current_dir(&place)
            .env_clear()
            .env("PATH", &path)
            .env("HOME", &place)
            .stdin(Stdio::null())
            .output()
            .expect("sh is there");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {stderr}");
        ran += 1;
    }
    assert!(ran >= 12, "only {ran} examples ran: has the form of the help changed?");
}

/// Parts of examples that are only parsed: other models and programs, servers, measurements, the
/// network.
const NOT_RUN: [&str; 13] = [
    "~/",
    "mlx-community/",
    "Qwen/",
    "DIR",
    "OUT/",
    "git ",
    "curl",
    "| jq",
    "qwen3.6-35b",
    "calla serve",
    "calla bench",
    "calla eval",
    "calla pull",
];

/// The names that lead to each command, from the help itself.
fn commands() -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        for name in subcommands(&path) {
            let inner: Vec<String> = path.iter().cloned().chain([name]).collect();
            open.push(inner.clone());
            found.push(inner);
        }
    }
    found
}

fn help(command: &[String]) -> String {
    let arguments = command.iter().map(String::as_str).chain(["--help"]);
    success(&calla(&arguments.collect::<Vec<_>>()).output().expect("it starts"))
}

fn subcommands(command: &[String]) -> Vec<String> {
    let help = help(command);
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    let names = lines.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The examples of a command's help, each a line for a shell.
fn examples(command: &[String]) -> Vec<String> {
    let help = help(command);
    let (_, lines) = help.split_once("\nExamples:\n").expect("every help ends with examples");
    let lines: Vec<&str> = lines.lines().map(str::trim).collect();
    lines.join("\n").replace("\\\n", " ").lines().map(str::to_owned).collect()
}
