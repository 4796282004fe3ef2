//! `calla pull`: a model from the hub into the cache.

use std::{path::Path, time::Instant};

use calla_engine::checkpoint::{check_config, check_unquantised_config, shard_names};
use serde_json::json;

use crate::{
    args::PullArgs,
    error::Error,
    hub::{
        Cache, CachedRepo, Client, Progress, Published, Remote, RepoFile, RepoName, Snapshot,
        download, is_offline,
    },
    output,
};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
/// Files beside the weights that calla reads, or that say what a model is and who may use it.
const SMALL_FILES: [&str; 8] = [
    CONFIG,
    INDEX,
    TOKENIZER,
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];
const DOCUMENTS: [&str; 4] = ["readme", "license", "licence", "notice"];

pub(crate) fn run(args: &PullArgs, verbose: u8) -> Result<(), Error> {
    let start = Instant::now();
    let name = &args.model;
    let cache = Cache::from_environment()?;
    let repo = cache.repo(name);
    if is_offline() {
        return report(args, &offline(&repo, name)?, 0, start);
    }
    let progress = Progress::new(verbose);
    let client = Client::from_environment(&progress)?;
    let remote = client.find(name)?;
    // config.json says whether the model could run: before anything large is asked for.
    check_runnable(&remote, args.unquantised)?;
    let files = match args.all {
        true => remote.files.clone(),
        false => needed(&remote)?,
    };
    let published: Vec<Published> =
        files.iter().map(|file| remote.published(file)).collect::<Result<_, _>>()?;

    // The disk must hold all of it, less what an earlier run left.
    repo.check_room(missing_bytes(&repo, &published))?;
    repo.create()?;
    progress.begin(published.iter().fold(0, |sum, file| sum.saturating_add(file.size_bytes)));
    for file in &published {
        download(&remote, file, &repo, &progress)?;
    }
    name_snapshot(&repo, &remote, &published, name, &progress)?;
    progress.erase();

    let snapshot = repo.snapshot(&remote.commit)?.ok_or_else(|| Error::Hub {
        subject: name.to_string(),
        problem: "another program removed it meanwhile: pull again".into(),
    })?;
    report(args, &snapshot, progress.came_bytes(), start)
}

/// Refuses, before anything large is downloaded, what could not run once it was there.
fn check_runnable(remote: &Remote<'_>, unquantised: bool) -> Result<(), Error> {
    let refuse = |problem: String| Error::Hub { subject: remote.repo(), problem };
    let Some(config) = file(remote, CONFIG) else {
        let gguf = remote.files.iter().any(|file| file.as_str().ends_with(".gguf"));
        let found = if gguf { "it holds GGUF files" } else { "it holds no config.json" };
        return Err(refuse(format!("{found}: {ADVICE}")));
    };
    let text = remote.read(&remote.published(config)?)?;
    let path = Path::new(&remote.repo()).join(CONFIG);
    if unquantised {
        check_unquantised_config(&path, &text)?;
        return Ok(());
    }
    if let Err(error) = check_config(&path, &text) {
        return Err(match check_unquantised_config(&path, &text) {
            Ok(_) => refuse(
                "the weights are not quantised: pull an MLX 4-bit conversion of the model, or pull \
                 these with --unquantised and convert them with `calla quantize`"
                    .into(),
            ),
            Err(_) => refuse(format!("{error}; {ADVICE}")),
        });
    }
    match file(remote, TOKENIZER) {
        Some(_) => Ok(()),
        None => Err(refuse(format!("it holds no {TOKENIZER}: {ADVICE}"))),
    }
}

const ADVICE: &str = "calla runs MLX 4 and 8 bit conversions of Qwen3.5 and Qwen3.6, as \
                      mlx-community publishes them; no weights were downloaded";

/// The files that a run takes, with the small ones first.
fn needed(remote: &Remote<'_>) -> Result<Vec<RepoFile>, Error> {
    let is_wanted = |file: &RepoFile| {
        let name = file.as_str().to_ascii_lowercase();
        SMALL_FILES.contains(&file.as_str())
            || (file.depth() == 0 && DOCUMENTS.iter().any(|word| name.starts_with(word)))
    };
    let mut files: Vec<RepoFile> =
        remote.files.iter().filter(|file| is_wanted(file)).cloned().collect();
    let weights = match file(remote, INDEX) {
        Some(index) => {
            let text = remote.read(&remote.published(index)?)?;
            shard_names(Path::new(&remote.subject(index)), &text)?
        }
        None => vec![SINGLE.to_owned()],
    };
    for weight in weights {
        files.push(file(remote, &weight).cloned().ok_or_else(|| Error::Hub {
            subject: remote.repo(),
            problem: format!("it holds no `{weight}`: {ADVICE}"),
        })?);
    }
    files.dedup();
    Ok(files)
}

fn file<'a>(remote: &'a Remote<'_>, name: &str) -> Option<&'a RepoFile> {
    remote.files.iter().find(|file| file.as_str() == name)
}

/// Bytes that are not on the disk yet.
fn missing_bytes(repo: &CachedRepo, published: &[Published]) -> u64 {
    let missing = published.iter().filter(|file| !repo.holds(&file.digest, file.size_bytes));
    missing.fold(0, |sum: u64, file| {
        let there = repo.incomplete_bytes(&file.digest);
        sum.saturating_add(file.size_bytes.saturating_sub(there))
    })
}

/// Makes the snapshot out of blobs that are all there: config.json last of its files, without which
/// it is no model, and after it the ref, by which it is found.
fn name_snapshot(
    repo: &CachedRepo,
    remote: &Remote<'_>,
    published: &[Published],
    name: &RepoName,
    progress: &Progress,
) -> Result<(), Error> {
    let (config, rest): (Vec<&Published>, Vec<&Published>) =
        published.iter().partition(|file| file.file.as_str() == CONFIG);
    for Published { file, digest, .. } in rest.into_iter().chain(config) {
        let waiting = || progress.note(&format!("another program holds {file}: waiting"));
        repo.link(&remote.commit, file, digest, waiting)?;
    }
    repo.set_ref(name.revision(), &remote.commit)
}

/// What is there already, for who may not ask the hub.
fn offline(repo: &CachedRepo, name: &RepoName) -> Result<Snapshot, Error> {
    let snapshot = repo.snapshot(name.revision())?;
    let missing = snapshot.as_ref().map_or(Ok(None), Snapshot::missing)?;
    snapshot.filter(|_| missing.is_none()).ok_or_else(|| Error::Hub {
        subject: name.to_string(),
        problem: "not in the cache, and HF_HUB_OFFLINE forbids to download it: unset that".into(),
    })
}

fn report(
    args: &PullArgs,
    snapshot: &Snapshot,
    downloaded_bytes: u64,
    start: Instant,
) -> Result<(), Error> {
    let (size_bytes, seconds) = (snapshot.size_bytes()?, start.elapsed().as_secs_f64());
    if args.output.json {
        return output::json(&json!({
            "model": snapshot.repo,
            "revision": args.model.revision(),
            "commit": snapshot.commit,
            "path": snapshot.folder,
            "size_bytes": size_bytes,
            "downloaded_bytes": downloaded_bytes,
            "seconds": seconds,
        }));
    }
    output::text(&format!(
        "{}: {} at {}, {} downloaded in {seconds:.1} s\n",
        args.model,
        output::size(size_bytes),
        &snapshot.commit[..12],
        output::size(downloaded_bytes),
    ))
}
