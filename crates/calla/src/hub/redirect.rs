//! Addresses: where a redirect leads, and which addresses are the hub itself.

use ureq::http::{HeaderMap, StatusCode, Uri, header, uri::Scheme};

/// Where an answer sends its reader; `None` for an answer that is no redirect.
///
/// # Errors
/// What is wrong with the place.
pub(super) fn target(
    from: &Uri,
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<Option<Uri>, String> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let text = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let text = text.ok_or_else(|| format!("redirects ({status}) to nowhere"))?;
    let target = resolve(from, text).ok_or("redirects to what is no address")?;
    if from.scheme() == Some(&Scheme::HTTPS) && target.scheme() != Some(&Scheme::HTTPS) {
        return Err("redirects from https to an address without it: refused".into());
    }
    Ok(Some(target))
}

/// Whether both are of the same scheme, host and port: a secret for one may be sent to the other.
pub(super) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    host(a).is_some() && host(a) == host(b) && a.scheme() == b.scheme() && port(a) == port(b)
}

fn port(uri: &Uri) -> Option<u16> {
    let by_scheme = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    Some(uri.port_u16().unwrap_or(by_scheme))
}

/// A reference as a whole address.
fn resolve(from: &Uri, reference: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let whole = if reference.starts_with("http://") || reference.starts_with("https://") {
        reference.to_owned()
    } else if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else if reference.starts_with('/') {
        format!("{scheme}://{authority}{reference}")
    } else {
        let (folder, _) = from.path().rsplit_once('/')?;
        format!("{scheme}://{authority}{folder}/{reference}")
    };
    let uri: Uri = whole.parse().ok()?;
    uri.host().is_some().then_some(uri)
}

#[cfg(test)]
mod tests {
    use ureq::http::HeaderValue;

    use super::*;

    fn to(from: &str, location: &'static str) -> Result<Option<String>, String> {
        let headers =
            HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(location))]);
        let from = from.parse().expect("an address");
        let target = target(&from, StatusCode::FOUND, &headers)?;
        Ok(target.map(|uri| uri.to_string()))
    }

    #[test]
    fn references_are_resolved() {
        let from = "http://hub:81/a/b/c?x=1";
        for (location, wanted) in [
            ("http://cdn/y?z", "http://cdn/y?z"),
            ("https://cdn/y", "https://cdn/y"),
            ("//cdn/y", "http://cdn/y"),
            ("/y?z", "http://hub:81/y?z"),
            ("y", "http://hub:81/a/b/y"),
        ] {
            assert_eq!(to(from, location), Ok(Some(wanted.into())));
        }
    }

    #[test]
    fn secrecy_is_not_given_up_on_the_way() {
        assert!(to("https://hub/a", "http://hub/a").is_err());
        assert!(to("https://hub/a", "//hub/a").is_ok());
        assert!(
            to("https://hub/a", "ftp://hub/a")
                .is_ok_and(|uri| uri.is_some_and(|uri| { uri.starts_with("https://hub/") }))
        );
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| {
            same_origin(&a.parse().expect("an address"), &b.parse().expect("an address"))
        };
        assert!(same("https://hub/a", "https://HUB:443/b"));
        assert!(!same("https://hub/a", "http://hub/a"));
        assert!(!same("http://hub/a", "http://hub:81/a"));
        assert!(!same("http://hub/a", "http://hub.evil/a"));
        assert!(!same("http://hub/a", "http://user@evil/a"));
    }
}
