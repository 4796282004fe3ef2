//! Step 8: ends content at a stop string, however it is spread over tokens.

/// Watches content for stop strings and holds back text that may be the start of one.
///
/// The stop string that completes first wins, and of those that complete on the same character the
/// longest: what a reader of the unsplit text would see first, however the text arrives.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    hit: Option<usize>,
}

/// What [`StopStrings::push`] lets through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that cannot be part of a stop string, up to and without the one found.
    pub text: String,
    /// The index of the stop string found: nothing follows.
    pub hit: Option<usize>,
}

impl StopStrings {
    /// Watches for `stops`; empty ones never match.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.to_vec(), held: String::new(), hit: None }
    }

    /// Takes the next text. After a hit everything more is dropped, since it lies behind the end.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.hit.is_some() {
            return StopStep { text: String::new(), hit: self.hit };
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.first_match() {
            self.hit = Some(index);
            self.held.truncate(start);
            return StopStep { text: std::mem::take(&mut self.held), hit: self.hit };
        }
        let held_len = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - held_len);
        StopStep { text: std::mem::replace(&mut self.held, held), hit: None }
    }

    /// Whether text waits for its rest.
    pub fn holds_text(&self) -> bool {
        !self.held.is_empty()
    }

    /// The text still held back: no stop string will complete it any more.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the winning stop string starts in `held`, and which one it is.
    fn first_match(&self) -> Option<(usize, usize)> {
        let matches = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        matches
            .filter_map(|(index, stop)| {
                let start = self.held.find(stop.as_str())?;
                Some((start + stop.len(), start, index))
            })
            .min()
            .map(|(_, start, index)| (start, index))
    }
}

/// Length in bytes of the longest end of `text` that is a proper start of `marker`.
pub(crate) fn overlap(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&n| marker.is_char_boundary(n) && text.as_bytes().ends_with(&marker.as_bytes()[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut watch = StopStrings::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            text.push_str(&watch.push(piece).text);
        }
        text.push_str(&watch.finish());
        (text, watch.hit)
    }

    #[test]
    fn every_split_cuts_at_the_same_place() {
        let cases: [(&[&str], &str, &str, Option<usize>); 8] = [
            (&["STOP"], "one STOP two", "one ", Some(0)),
            (&["STOP"], "one STO two ST", "one STO two ST", None),
            (&["bc", "abcd"], "xabcd", "xa", Some(0)),
            (&["cd", "abcd"], "xabcd", "x", Some(1)),
            (&["aab"], "aaaab!", "aa", Some(0)),
            (&["\n\n", "終わり"], "日本終わり語", "日本", Some(1)),
            (&["", "z"], "abc", "abc", None),
            (&[], "abc", "abc", None),
        ];
        for (stops, text, want, hit) in cases {
            let ends: Vec<usize> =
                text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
            for &a in &ends {
                for &b in ends.iter().filter(|b| **b >= a) {
                    let pieces = [&text[..a], &text[a..b], &text[b..]];
                    assert_eq!(run(stops, &pieces), (want.to_owned(), hit), "{stops:?} {pieces:?}");
                }
            }
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            assert_eq!(run(stops, &single), (want.to_owned(), hit));
        }
    }

    #[test]
    fn text_that_cannot_match_is_not_held() {
        let mut watch = StopStrings::new(&["STOP".to_owned()]);
        assert_eq!(watch.push("abc S").text, "abc ");
        assert!(watch.holds_text());
        assert_eq!(watch.push("un").text, "Sun");
        assert!(!watch.holds_text());
    }
}
