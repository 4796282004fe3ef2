//! A hub on this machine: a server that knows repositories and answers for small files, and a second
//! one, on another port, to which it redirects for large ones. A rule may answer otherwise.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::json;
use sha2::Digest as _;

/// Stands for a whole commit id.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repository with one commit, on `main`.
#[derive(Clone)]
pub(crate) struct Repo {
    pub(crate) name: &'static str,
    pub(crate) commit: String,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

/// What a client asked.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Whether it came to the second server.
    pub(crate) on_store: bool,
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
}

/// What it is answered.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes after which the connection is cut.
    pub(crate) cut: Option<usize>,
    /// Bytes that come at a time, and the pause after each.
    pub(crate) drip: Option<(usize, Duration)>,
    /// Whether the length is told.
    pub(crate) length: bool,
}

type Rule = dyn Fn(&Request, &Reply) -> Option<Reply> + Send + Sync;

pub(crate) struct Hub {
    pub(crate) endpoint: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Hub {
    /// Serves a repository as the real hub does.
    pub(crate) fn of(repo: Repo) -> Self {
        Self::with_rule(repo, |_, _| None)
    }

    /// The same, except where the rule answers; it is shown what would be answered.
    pub(crate) fn with_rule(
        repo: Repo,
        rule: impl Fn(&Request, &Reply) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let [hub, store] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let address = |of: &TcpListener| format!("http://{}", of.local_addr().expect("bound"));
        let (endpoint, store_address) = (address(&hub), address(&store));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let rule: Arc<Rule> = Arc::new(rule);
        let repo = Arc::new(repo);
        for (listener, on_store) in [(hub, false), (store, true)] {
            let (seen, rule, repo) = (Arc::clone(&seen), Arc::clone(&rule), Arc::clone(&repo));
            let store_address = store_address.clone();
            thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    let (seen, rule, repo) =
                        (Arc::clone(&seen), Arc::clone(&rule), Arc::clone(&repo));
                    let store_address = store_address.clone();
                    thread::spawn(move || {
                        let Some(request) = read_request(&connection, on_store) else { return };
                        let usual = repo.answer(&request, &store_address);
                        let reply = rule(&request, &usual).unwrap_or(usual);
                        seen.lock().expect("no test panics with it").push(request.clone());
                        // A client that was killed is no concern of the server.
                        let _ = reply.send(&connection, request.method == "HEAD");
                    });
                }
            });
        }
        Self { endpoint, seen }
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().expect("no test panics with it").clone()
    }

    /// The places from which weights were asked, in order.
    pub(crate) fn weight_starts(&self) -> Vec<u64> {
        let weights = |request: &&Request| request.on_store && request.method == "GET";
        self.seen().iter().filter(weights).map(Request::start).collect()
    }
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let named = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str())
    }

    /// Whether it asks for a part of the weights' bytes.
    pub(crate) fn is_weights(&self) -> bool {
        self.on_store && self.method == "GET"
    }

    /// The first byte that it asks for.
    pub(crate) fn start(&self) -> u64 {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        range.map_or(0, |range| range.trim_end_matches('-').parse().expect("an open range"))
    }
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), cut: None, drip: None, length: true }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.retain(|(header, _)| *header != name);
        self.headers.push((name, value.to_string()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn send(&self, mut connection: &TcpStream, is_head: bool) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", self.status);
        if self.length {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        connection.write_all(format!("{head}\r\n").as_bytes())?;
        if is_head {
            return Ok(());
        }
        let body = &self.body[..self.cut.unwrap_or(self.body.len()).min(self.body.len())];
        let (size, pause) = self.drip.unwrap_or((body.len().max(1), Duration::ZERO));
        for chunk in body.chunks(size) {
            connection.write_all(chunk)?;
            thread::sleep(pause);
        }
        Ok(())
    }
}

impl Repo {
    /// A file's bytes.
    pub(crate) fn file(&self, name: &str) -> &[u8] {
        let file = self.files.iter().find(|(file, _)| file == name);
        &file.unwrap_or_else(|| panic!("no {name}")).1
    }

    /// The same with a file added or replaced.
    pub(crate) fn with(mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.retain(|(file, _)| file != name);
        self.files.push((name.to_owned(), bytes.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.files.retain(|(file, _)| file != name);
        self
    }

    fn answer(&self, request: &Request, store: &str) -> Reply {
        let path = request.path.split('?').next().unwrap_or_default();
        let revision = path.strip_prefix(&format!("/api/models/{}/revision/", self.name));
        if let Some(revision) = revision {
            return self.listing(revision);
        }
        let resolved = format!("/{}/resolve/{}/", self.name, self.commit);
        let file = path.strip_prefix(if request.on_store { "/store/" } else { &resolved });
        let file = file.and_then(|name| self.files.iter().find(|(file, _)| file == name));
        match file {
            None if request.on_store => Reply::status(404),
            None => Reply::status(404).header("X-Error-Code", "EntryNotFound"),
            Some((_, bytes)) if request.on_store => part(bytes, request),
            Some((name, bytes)) if name.ends_with(".safetensors") => Reply::status(302)
                .header("X-Repo-Commit", &self.commit)
                .header("X-Linked-Etag", format!("\"{}\"", sha256(bytes)))
                .header("X-Linked-Size", bytes.len())
                .header("ETag", "\"of-the-redirect\"")
                .header("Location", format!("{store}/store/{name}?signature=secret")),
            Some((_, bytes)) => Reply::status(200)
                .header("ETag", format!("\"{}\"", git_blob(bytes)))
                .body(bytes.clone()),
        }
    }

    fn listing(&self, revision: &str) -> Reply {
        if !["main", "refs%2Fpr%2F1", &self.commit].contains(&revision) {
            return Reply::status(404).header("X-Error-Code", "RevisionNotFound");
        }
        let siblings: Vec<_> =
            self.files.iter().map(|(file, _)| json!({"rfilename": file})).collect();
        let listing = json!({"id": self.name, "sha": self.commit, "siblings": siblings});
        Reply::status(200).body(listing.to_string())
    }
}

fn part(bytes: &[u8], request: &Request) -> Reply {
    let (start, len) = (request.start() as usize, bytes.len());
    match start {
        0 => Reply::status(200).body(bytes),
        _ if start >= len => Reply::status(416).header("Content-Range", format!("bytes */{len}")),
        _ => Reply::status(206)
            .header("Content-Range", format!("bytes {start}-{}/{len}", len - 1))
            .body(&bytes[start..]),
    }
}

fn read_request(connection: &TcpStream, on_store: bool) -> Option<Request> {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())))
        .collect();
    Some(Request { on_store, method, path, headers })
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

pub(crate) fn git_blob(bytes: &[u8]) -> String {
    let mut hasher = sha1::Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
