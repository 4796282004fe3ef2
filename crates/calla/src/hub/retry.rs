//! When to ask again, and when to give up.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use ureq::http::{HeaderMap, StatusCode, header};

use super::Progress;
use crate::error::Error;

/// Failures in a row, without a byte of progress, after which it is given up.
const ATTEMPTS_MAX: u32 = 6;
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// Longest wait that a server may ask for: the hub counts requests in windows of five minutes.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Why a request was not answered as hoped.
#[derive(Debug)]
pub(super) enum Failure {
    /// Asking again would not help.
    Lasting(Error),
    /// A later attempt may succeed.
    Passing {
        problem: String,
        /// How long the server wants to be left alone.
        wait: Option<Duration>,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lasting(error)
    }
}

impl Failure {
    pub(super) fn passing(problem: impl ToString) -> Self {
        Self::Passing { problem: problem.to_string(), wait: None }
    }
}

/// Counts failures and waits between attempts.
pub(super) struct Patience<'a> {
    /// What is asked for, for messages.
    subject: &'a str,
    progress: &'a Progress,
    failures: u32,
}

impl<'a> Patience<'a> {
    pub(super) fn new(subject: &'a str, progress: &'a Progress) -> Self {
        Self { subject, progress, failures: 0 }
    }

    /// An attempt got further than any before it.
    pub(super) fn renew(&mut self) {
        self.failures = 0;
    }

    /// Waits until it is time for another attempt.
    ///
    /// # Errors
    /// The failure itself when it lasts, or when there were enough attempts.
    pub(super) fn wait(&mut self, failure: Failure) -> Result<(), Error> {
        let (problem, asked) = match failure {
            Failure::Lasting(error) => return Err(error),
            Failure::Passing { problem, wait } => (problem, wait),
        };
        self.failures += 1;
        let wait = asked.unwrap_or(WAIT_FIRST * 2u32.pow(self.failures - 1));
        let give_up = |advice: String| Error::Hub {
            subject: self.subject.to_owned(),
            problem: format!("{problem}: {advice}"),
        };
        if wait > WAIT_MAX {
            return Err(give_up(format!("try again in {} min", wait.as_secs().div_ceil(60))));
        }
        if self.failures == ATTEMPTS_MAX {
            let advice = format!("gave up after {ATTEMPTS_MAX} attempts; pulling again goes on");
            return Err(give_up(advice));
        }
        let seconds = wait.as_secs();
        self.progress.note(&format!("{}: {problem}, again in {seconds} s", self.subject));
        thread::sleep(wait);
        Ok(())
    }
}

/// Asks until it is answered, or until it is no use.
pub(super) fn persist<T>(
    subject: &str,
    progress: &Progress,
    mut ask: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Error> {
    let mut patience = Patience::new(subject, progress);
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(failure) => patience.wait(failure)?,
        }
    }
}

/// Whether a later attempt may be answered otherwise.
pub(super) fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// How long the server asks to wait: Retry-After as seconds or as a date, or the seconds until the
/// hub's rate limit starts anew.
pub(super) fn wait_asked(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if let Some(text) = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()) {
        let text = text.trim();
        return match text.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => {
                let date = httpdate::parse_http_date(text).ok()?;
                Some(date.duration_since(now).unwrap_or_default())
            }
        };
    }
    let limit = headers.get("ratelimit")?.to_str().ok()?;
    let seconds = limit.split(';').find_map(|field| field.trim().strip_prefix("t="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use ureq::http::HeaderValue;

    use super::*;

    #[test]
    fn servers_tell_how_long_to_wait_in_three_ways() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let wait = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                name.parse().expect("a name"),
                HeaderValue::from_static(value),
            )]);
            wait_asked(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("retry-after", "120"), Some(120));
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        assert_eq!(wait("retry-after", "soon"), None);
        assert_eq!(wait("ratelimit", "\"resolvers\";r=0;t=55"), Some(55));
        assert_eq!(wait("server", "x"), None);
    }
}
