use std::{fmt, str::FromStr};

/// The revision that is meant when none is given.
const REVISION_DEFAULT: &str = "main";
/// Longest name of an owner, a model or a file that file systems and the hub take.
const NAME_BYTES_MAX: usize = 96;
const COMPONENT_BYTES_MAX: usize = 255;

/// A model on the hub: `owner/name`, or `owner/name@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepoName {
    owner: String,
    name: String,
    revision: Option<String>,
}

/// A file of a repository: a relative path whose components are plain names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RepoFile(String);

impl RepoName {
    /// `owner/name`, without the revision.
    pub(crate) fn repo(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The branch, tag or commit; `main` when none was given.
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(REVISION_DEFAULT)
    }

    /// The branch, tag or commit, if one was given.
    pub(crate) fn explicit_revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }
}

impl FromStr for RepoName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (text, None),
        };
        let parts = repo.split_once('/').filter(|(owner, name)| is_name(owner) && is_name(name));
        let Some((owner, name)) = parts else {
            return Err("expected owner/name or owner/name@revision".into());
        };
        if let Some(revision) = revision
            && !is_revision(revision)
        {
            return Err("what follows @ is no branch, tag or commit".into());
        }
        Ok(Self { owner: owner.into(), name: name.into(), revision: revision.map(str::to_owned) })
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

impl RepoFile {
    /// A name that a server sent; `None` for one that could lead out of its folder, or that no
    /// terminal should be shown.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split('/').all(is_component).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// How many folders it lies in.
    pub(crate) fn depth(&self) -> usize {
        self.0.matches('/').count()
    }
}

impl fmt::Display for RepoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether it is a whole commit id.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Whether it consists of lower-case hexadecimal digits.
pub(crate) fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The hub's rule for owners and names; `--` separates them in the cache.
fn is_name(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.chars().all(known)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
        && !text.contains("--")
        && !text.contains("..")
}

/// Git's rule for refs, as far as it keeps them apart from other paths.
fn is_revision(text: &str) -> bool {
    text.split('/').all(|component| {
        is_component(component)
            && !component.starts_with(['.', '-'])
            && !component.contains("..")
            && !component.contains([' ', '~', '^', ':', '?', '*', '['])
    })
}

fn is_component(text: &str) -> bool {
    (1..=COMPONENT_BYTES_MAX).contains(&text.len())
        && text != "."
        && text != ".."
        && !text.contains('\\')
        && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_a_revision() {
        let name: RepoName = "mlx-community/Qwen3.6-35B-A3B-4bit".parse().expect("a name");
        assert_eq!(name.repo(), "mlx-community/Qwen3.6-35B-A3B-4bit");
        assert_eq!((name.revision(), name.explicit_revision()), ("main", None));
        let name: RepoName = "a/b@refs/pr/1".parse().expect("a name");
        assert_eq!((name.repo().as_str(), name.revision()), ("a/b", "refs/pr/1"));
        assert_eq!(name.to_string(), "a/b@refs/pr/1");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "a",
            "/a",
            "a/",
            "a/b/c",
            "../b",
            "a/..",
            ".a/b",
            "a/b.",
            "-a/b",
            "a--b/c",
            "a/b c",
            "~/b",
            "a/b@",
            "a/b@..",
            "a/b@/x",
            "a/b@x/../y",
            "a/b@-x",
            "a/b@x\n",
            "a/b@a b",
        ] {
            assert!(text.parse::<RepoName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn files_that_lead_elsewhere_are_refused() {
        for text in [
            "",
            "/",
            "/etc/passwd",
            "../x",
            "a/../x",
            "a/..",
            ".",
            "a//b",
            "a/",
            "a\\..\\b",
            "a\0b",
            "a\nb",
            "\u{1b}[2J",
        ] {
            assert_eq!(RepoFile::parse(text), None, "{text:?}");
        }
        for text in ["config.json", ".gitattributes", "a/b/c.txt", "..x", "é x"] {
            assert_eq!(RepoFile::parse(text).expect("a file").as_str(), text);
        }
    }
}
