use std::{
    cell::Cell,
    io::Read as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::{
    Agent, Body, BodyReader,
    http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header},
    tls::{Certificate, RootCerts, TlsConfig},
};

use super::{
    Digest, Progress, RepoFile, RepoName,
    environment::{self, Token},
    redirect,
    retry::{Failure, is_passing, persist, wait_asked},
};
use crate::{error::Error, version};

/// Longest list of a repository's files that is believed.
const LISTING_BYTES_MAX: u64 = 32 << 20;
/// Longest config.json or index that is believed.
const TEXT_BYTES_MAX: u64 = 64 << 20;
const REDIRECTS_MAX: usize = 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Silence after which a connection counts as cut.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest message of a server that is repeated to the user.
const MESSAGE_CHARS_MAX: usize = 200;

/// What stays as it is in a component of an address.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A connection to the hub.
pub(crate) struct Client<'a> {
    progress: &'a Progress,
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
    /// Whether anything was answered yet: an address that never answered is probably wrong.
    reached: Cell<bool>,
}

/// One commit of a repository on the hub.
pub(crate) struct Remote<'a> {
    client: &'a Client<'a>,
    name: &'a RepoName,
    pub(crate) commit: String,
    pub(crate) files: Vec<RepoFile>,
}

/// How to tell that a file is whole.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) file: RepoFile,
    pub(crate) digest: Digest,
    pub(crate) size_bytes: u64,
}

/// A file's bytes as they come.
pub(super) struct Stream {
    pub(super) reader: BodyReader<'static>,
    /// Where in the file they begin: 0 when the server does not go on from the middle.
    pub(super) start: u64,
}

impl<'a> Client<'a> {
    /// A client for the hub that the environment names, with its token and its proxies.
    pub(crate) fn from_environment(progress: &'a Progress) -> Result<Self, Error> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // They are followed here: the token must not go along.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(format!("calla/{}", version::SHORT))
            .accept_encoding("identity")
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX))
            .tls_config(TlsConfig::builder().root_certs(root_certificates()?).build())
            .build();
        Ok(Self {
            progress,
            agent: config.into(),
            endpoint: environment::endpoint()?,
            token: environment::token()?,
            reached: Cell::new(false),
        })
    }

    /// The commit that a revision means now, and its files.
    pub(crate) fn find(&'a self, name: &'a RepoName) -> Result<Remote<'a>, Error> {
        let subject = name.to_string();
        let revision = utf8_percent_encode(name.revision(), PLAIN);
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, name.repo());
        let text = persist(&subject, self.progress, || {
            let response = self.send(&Method::GET, &url, 0, name)?;
            let body = response.into_body().into_with_config().limit(LISTING_BYTES_MAX);
            body.read_to_vec().map_err(Failure::passing)
        })?;
        let (commit, files) =
            parse_listing(&text).map_err(|problem| Error::Hub { subject, problem })?;
        Ok(Remote { client: self, name, commit, files })
    }

    /// Sends a request and follows redirects; an answer that is an error becomes one.
    fn send(
        &self,
        method: &Method,
        url: &str,
        start: u64,
        name: &RepoName,
    ) -> Result<Response<Body>, Failure> {
        let lasting =
            |problem: String| Failure::Lasting(Error::Hub { subject: name.to_string(), problem });
        let hub: Uri = url.parse().map_err(|_| lasting(format!("{url:?} is no address")))?;
        let mut at = hub.clone();
        for _ in 0..=REDIRECTS_MAX {
            let is_hub = redirect::same_origin(&hub, &at);
            let response = self.send_once(method, &at, start, is_hub)?;
            let (status, headers) = (response.status(), response.headers());
            let target = redirect::target(&at, status, headers)
                .map_err(|problem| lasting(format!("{} {problem}", host(&at))))?;
            // What the hub says of a large file stands on its redirect; where that leads answers
            // GET alone.
            let is_told = *method == Method::HEAD && headers.contains_key("x-linked-etag");
            match target {
                Some(target) if !is_told => at = target,
                _ if status.is_client_error() || status.is_server_error() => {
                    if status == StatusCode::RANGE_NOT_SATISFIABLE && start > 0 {
                        return Ok(response);
                    }
                    return Err(self.refusal(response, &at, is_hub, name));
                }
                _ => return Ok(response),
            }
        }
        Err(lasting(format!("{} redirects without end", self.endpoint)))
    }

    fn send_once(
        &self,
        method: &Method,
        at: &Uri,
        start: u64,
        is_hub: bool,
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(method).uri(at);
        if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
            request = request.header(header::AUTHORIZATION, token.header.clone());
        }
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        let request = request.body(()).expect("the method, the address and the headers are valid");
        match self.agent.run(request) {
            Ok(response) => {
                self.reached.set(true);
                Ok(response)
            }
            Err(error) if self.reached.get() => {
                Err(Failure::passing(format!("{}: {error}", host(at))))
            }
            Err(error) => Err(Failure::Lasting(Error::Hub {
                subject: self.endpoint.clone(),
                problem: format!(
                    "cannot be reached: {error}; HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy, \
                     SSL_CERT_FILE other certificates"
                ),
            })),
        }
    }

    /// What an answer with an error status means, and what to do about it.
    fn refusal(
        &self,
        response: Response<Body>,
        at: &Uri,
        is_hub: bool,
        name: &RepoName,
    ) -> Failure {
        let status = response.status();
        let wait = wait_asked(response.headers(), SystemTime::now());
        if is_passing(status) {
            return Failure::Passing { problem: format!("{} answers {status}", host(at)), wait };
        }
        let field = |field: &str| {
            let value = response.headers().get(field).and_then(|value| value.to_str().ok());
            // As a header's text it holds nothing that could take over a terminal.
            value.unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect::<String>()
        };
        let (code, message) = (field("x-error-code"), field("x-error-message"));
        let problem = match (status.as_u16(), code.as_str()) {
            _ if !is_hub => format!("{} answers {status}", host(at)),
            (_, "GatedRepo") => format!(
                "its publisher asks readers to sign up: do so at {}/{}, then {}",
                self.endpoint,
                name.repo(),
                self.token_advice()
            ),
            (_, "RevisionNotFound") => {
                format!("the model has no revision `{}`", name.revision())
            }
            (_, "EntryNotFound") => "the file is gone from the hub: pull again".into(),
            (401, _) if self.token.is_some() => {
                format!("{} does not accept the token: {}", self.endpoint, self.token_advice())
            }
            (401 | 404, _) => format!(
                "{} has no such model, or it is private: check the name, or {}",
                self.endpoint,
                self.token_advice()
            ),
            (403, _) => format!("access is denied ({message}): {}", self.token_advice()),
            _ => format!("{} answers {status} {message}", self.endpoint),
        };
        Failure::Lasting(Error::Hub { subject: name.to_string(), problem })
    }

    fn token_advice(&self) -> String {
        match &self.token {
            Some(token) => {
                format!("give a token that may read it (this one is from {})", token.source)
            }
            None => "give a token that may read it in HF_TOKEN".into(),
        }
    }
}

impl Remote<'_> {
    /// `owner/name`.
    pub(crate) fn repo(&self) -> String {
        self.name.repo()
    }

    /// What a message calls this file.
    pub(crate) fn subject(&self, file: &RepoFile) -> String {
        format!("{}/{file}", self.name.repo())
    }

    /// Hash and length of a file.
    pub(crate) fn published(&self, file: &RepoFile) -> Result<Published, Error> {
        let subject = self.subject(file);
        let url = self.url(file);
        let headers = persist(&subject, self.client.progress, || {
            let response = self.client.send(&Method::HEAD, &url, 0, self.name)?;
            Ok(response.into_parts().0.headers)
        })?;
        let text = |field: &str| headers.get(field).and_then(|value| value.to_str().ok());
        let etag = text("x-linked-etag").or_else(|| text("etag"));
        let size = text("x-linked-size").or_else(|| text("content-length"));
        let unknown = |what: &str| Error::Hub {
            subject: subject.clone(),
            problem: format!("{} tells no {what} by which to check it", self.client.endpoint),
        };
        Ok(Published {
            file: file.clone(),
            digest: etag.and_then(Digest::of_etag).ok_or_else(|| unknown("hash"))?,
            size_bytes: size.and_then(|size| size.parse().ok()).ok_or_else(|| unknown("size"))?,
        })
    }

    /// A small file, whole and checked.
    pub(crate) fn read(&self, published: &Published) -> Result<Vec<u8>, Error> {
        let subject = self.subject(&published.file);
        if published.size_bytes > TEXT_BYTES_MAX {
            let problem = format!("has {} bytes: not what its name says", published.size_bytes);
            return Err(Error::Hub { subject, problem });
        }
        persist(&subject, self.client.progress, || {
            let mut bytes = Vec::new();
            let stream = self.open(published, 0)?;
            let mut limited = stream.reader.take(published.size_bytes + 1);
            limited.read_to_end(&mut bytes).map_err(Failure::passing)?;
            let mut hasher = published.digest.hasher(published.size_bytes);
            hasher.update(&bytes);
            match hasher.finish() == published.digest {
                true => Ok(bytes),
                false => Err(Failure::passing("what came is not the file that was published")),
            }
        })
    }

    /// Starts to read a file from this place on.
    pub(super) fn open(&self, published: &Published, start: u64) -> Result<Stream, Failure> {
        let response =
            self.client.send(&Method::GET, &self.url(&published.file), start, self.name)?;
        let (answered, total) = match response.status() {
            StatusCode::PARTIAL_CONTENT => content_range(response.headers())
                .ok_or_else(|| Failure::passing("the server sent a part without its place"))?,
            StatusCode::RANGE_NOT_SATISFIABLE => return self.open(published, 0),
            // A server that takes no ranges begins at the beginning.
            _ => (0, response.body().content_length()),
        };
        if let Some(total) = total.filter(|total| *total != published.size_bytes) {
            return Err(Failure::Lasting(Error::Hub {
                subject: self.subject(&published.file),
                problem: format!(
                    "the server has {total} bytes where {} are published: try again later, or \
                     without a mirror",
                    published.size_bytes
                ),
            }));
        }
        if answered != 0 && answered != start {
            let problem = format!("the server sent bytes from {answered} on, not from {start}");
            return Err(Failure::passing(problem));
        }
        Ok(Stream { reader: response.into_body().into_reader(), start: answered })
    }

    fn url(&self, file: &RepoFile) -> String {
        let path: Vec<String> = (file.as_str().split('/'))
            .map(|component| utf8_percent_encode(component, PLAIN).to_string())
            .collect();
        let (endpoint, repo) = (&self.client.endpoint, self.name.repo());
        format!("{endpoint}/{repo}/resolve/{}/{}", self.commit, path.join("/"))
    }
}

/// What the hub says about a revision.
#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The commit and its files.
fn parse_listing(text: &[u8]) -> Result<(String, Vec<RepoFile>), String> {
    let info: Info = serde_json::from_slice(text).map_err(|error| {
        format!("the answer is not the hub's ({error}): is there a login page in between?")
    })?;
    if !super::name::is_commit(&info.sha) {
        return Err(format!("the hub names {:?} as its commit", info.sha));
    }
    let file = |sibling: &Sibling| {
        let name = &sibling.rfilename;
        RepoFile::parse(name).ok_or_else(|| {
            format!("holds a file named {name:?}, which could lead elsewhere: refused")
        })
    };
    let files = info.siblings.iter().map(file).collect::<Result<_, _>>()?;
    Ok((info.sha, files))
}

/// Where a part begins, and how long the whole is.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()))
}

/// The certificates that this machine trusts; where there are none, those of Mozilla's list.
fn root_certificates() -> Result<RootCerts, Error> {
    let found = rustls_native_certs::load_native_certs();
    let is_told =
        ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os).iter().any(Option::is_some);
    match found.errors.first() {
        _ if !found.certs.is_empty() => {}
        Some(error) if is_told => {
            let problem = format!("{error}: name a file of certificates, or unset it");
            return Err(Error::Environment { variable: "SSL_CERT_FILE", problem });
        }
        _ => {
            tracing::info!("this machine has no certificates: those of the program are used");
            return Ok(RootCerts::WebPki);
        }
    }
    let owned = found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned());
    Ok(RootCerts::Specific(Arc::new(owned.collect())))
}

/// Host and port alone: a path may be long, a query may hold a signature.
fn host(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    uri.port_u16().map_or(host.to_owned(), |port| format!("{host}:{port}"))
}
