//! The environment variables that programs of the hub share.

use std::{env, ffi::OsString, path::PathBuf};

use ureq::http::{HeaderValue, Uri};

use crate::{error::Error, folders, small_file};

const ENDPOINT_DEFAULT: &str = "https://huggingface.co";

/// Far more than any token takes.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// A secret that is sent to the hub, and nowhere else; it has no `Debug` and no `Display`.
pub(super) struct Token {
    /// `Bearer TOKEN`.
    pub(super) header: HeaderValue,
    /// Where it stood, for messages.
    pub(super) source: String,
}

/// `$HF_HUB_CACHE`, else `$HF_HOME/hub`.
pub(super) fn cache_folder() -> Result<PathBuf, Error> {
    match path_variable("HF_HUB_CACHE") {
        Some(folder) => Ok(folder),
        None => Ok(home()?.join("hub")),
    }
}

/// `$HF_ENDPOINT`, else the public hub: an address without a slash at its end.
pub(super) fn endpoint() -> Result<String, Error> {
    let Some(value) = variable("HF_ENDPOINT") else { return Ok(ENDPOINT_DEFAULT.into()) };
    let text = value.to_string_lossy();
    let text = text.trim_end_matches('/');
    let known = text.starts_with("https://") || text.starts_with("http://");
    match text.parse::<Uri>() {
        Ok(uri) if known && uri.host().is_some() && uri.query().is_none() => Ok(text.into()),
        _ => Err(Error::Environment {
            variable: "HF_ENDPOINT",
            problem: format!("{text:?} is no address: expected https://HOST"),
        }),
    }
}

/// `$HF_TOKEN`, else what the file `$HF_HOME/token` holds.
pub(super) fn token() -> Result<Option<Token>, Error> {
    let (text, source) = match variable("HF_TOKEN") {
        Some(value) => (value.to_string_lossy().into_owned(), "HF_TOKEN".to_owned()),
        None => {
            // Without a home folder there is no file either.
            let Ok(path) = home().map(|home| home.join("token")) else { return Ok(None) };
            match small_file::read(&path, TOKEN_BYTES_MAX) {
                Ok(text) => (text, path.display().to_string()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(Error::File { path, problem: error.to_string() }),
            }
        }
    };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    match HeaderValue::from_str(&format!("Bearer {text}")) {
        Ok(mut header) if plain => {
            header.set_sensitive(true);
            Ok(Some(Token { header, source }))
        }
        // The value stays out of the message.
        _ => Err(Error::Environment {
            variable: "HF_TOKEN",
            problem: format!("what {source} holds is no token: expected one word"),
        }),
    }
}

/// Whether `$HF_HUB_OFFLINE` forbids the network.
pub(crate) fn is_offline() -> bool {
    let value = variable("HF_HUB_OFFLINE").unwrap_or_default();
    let value = value.to_string_lossy().to_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

/// `$HF_HOME`, else `huggingface` in the user's cache folder.
fn home() -> Result<PathBuf, Error> {
    if let Some(home) = path_variable("HF_HOME") {
        return Ok(home);
    }
    folders::caches().map(|caches| caches.join("huggingface")).ok_or_else(|| Error::Environment {
        variable: "HF_HOME",
        problem: "not set, and neither is HOME: set it to the folder that holds `hub`".into(),
    })
}

/// A variable's value; an empty one counts as absent.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// A variable that holds a path, in which a leading `~` is the user's folder.
fn path_variable(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(variable(name)?);
    match (path.strip_prefix("~"), folders::home()) {
        (Ok(rest), Some(home)) => Some(home.join(rest)),
        _ => Some(path),
    }
}
