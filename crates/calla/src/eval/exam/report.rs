//! The table of results, and the marks that are held against it.

use std::fmt::Write as _;

use serde::Serialize;

use super::judge::Wrong;

/// Shares that the embedded model has to reach.
const MARKS: [(&str, f64); 8] = [
    ("copying", 0.97),
    ("recall", 0.97),
    ("facts", 0.97),
    ("format", 0.97),
    ("arithmetic", 0.95),
    ("tools", 0.93),
    ("json", 0.95),
    ("recall_4096", 0.90),
];

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) backend: String,
    items: usize,
    right: usize,
    share: f64,
    /// Answers that ended by themselves, said something and closed their thought.
    well_formed: usize,
    /// Whether every skill that has a mark and was asked about reached it.
    passed: bool,
    skills: Vec<Row>,
}

/// One skill's result.
#[derive(Debug, Serialize)]
struct Row {
    skill: String,
    items: usize,
    right: usize,
    share: f64,
    mark: Option<f64>,
    /// Whether the mark is reached, where there is one.
    reached: Option<bool>,
}

/// The share that a skill has to reach.
pub(super) fn mark(skill: &str) -> Option<f64> {
    MARKS.iter().find(|(name, _)| *name == skill).map(|(_, mark)| *mark)
}

/// Skills that have a mark.
pub(super) fn marked() -> impl Iterator<Item = &'static str> {
    MARKS.iter().map(|(name, _)| *name)
}

impl Report {
    pub(super) fn new(model: String, backend: String) -> Self {
        let (items, right, share, well_formed) = (0, 0, 0.0, 0);
        let (passed, skills) = (true, Vec::new());
        Self { model, backend, items, right, share, well_formed, passed, skills }
    }

    /// Counts the answer to an item; items of one skill come one after the other.
    pub(super) fn add(&mut self, skill: &str, result: Result<(), Wrong>) {
        if self.skills.last().is_none_or(|row| row.skill != skill) {
            self.skills.push(Row::new(skill));
        }
        let row = self.skills.last_mut().expect("one was pushed if there was none");
        row.add(result.is_ok());
        self.items += 1;
        self.right += usize::from(result.is_ok());
        self.share = share(self.right, self.items);
        self.well_formed += usize::from(!matches!(result, Err(Wrong::Form(_))));
        self.passed = self.skills.iter().all(|row| row.reached != Some(false));
    }

    /// How the skill of the last item stands.
    pub(super) fn last_line(&self) -> String {
        let line = |row: &Row| format!("{}: {} of {}", row.skill, row.right, row.items);
        self.skills.last().map_or_else(String::new, line)
    }

    /// The marks that were missed, in one line; `None` when there are none.
    pub(super) fn missed(&self) -> Option<String> {
        let missed: Vec<String> = self.skills.iter().filter_map(Row::missed).collect();
        (!missed.is_empty()).then(|| missed.join(", "))
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!("{:<18} {:>5}  {:>5}  {:>5}", "skill", "items", "right", "share");
        text.push_str("  mark  verdict\n");
        for row in &self.skills {
            text.push_str(&row.line());
            text.push('\n');
        }
        for (name, count) in [("all", self.right), ("well formed", self.well_formed)] {
            let share = share(count, self.items);
            writeln!(text, "{name:<18} {:>5}  {count:>5}  {share:>5.3}", self.items)
                .expect("writing to a String cannot fail");
        }
        text
    }
}

impl Row {
    fn new(skill: &str) -> Self {
        let (items, right, share, reached) = (0, 0, 0.0, None);
        Self { skill: skill.to_owned(), items, right, share, mark: mark(skill), reached }
    }

    fn add(&mut self, right: bool) {
        self.items += 1;
        self.right += usize::from(right);
        self.share = share(self.right, self.items);
        self.reached = self.mark.map(|mark| self.share >= mark);
    }

    fn line(&self) -> String {
        let Self { skill, items, right, share, .. } = self;
        let line = format!("{skill:<18} {items:>5}  {right:>5}  {share:>5.3}");
        match (self.mark, self.reached) {
            (Some(mark), Some(true)) => format!("{line}  {mark:.2}  reached"),
            (Some(mark), _) => format!("{line}  {mark:.2}  missed"),
            (None, _) => format!("{line}     -  -"),
        }
    }

    fn missed(&self) -> Option<String> {
        let mark = self.mark.filter(|_| self.reached == Some(false))?;
        Some(format!("{} {:.3} of {mark:.2}", self.skill, self.share))
    }
}

fn share(part: usize, whole: usize) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(skills: &[(&str, usize, usize)]) -> Report {
        let mut report = Report::new("m".into(), "b".into());
        for &(skill, right, wrong) in skills {
            (0..right).for_each(|_| report.add(skill, Ok(())));
            (0..wrong).for_each(|_| report.add(skill, Err(Wrong::Answer("another text"))));
        }
        report
    }

    #[test]
    fn a_mark_is_reached_at_its_very_share() {
        let report = report(&[("arithmetic", 19, 1), ("json", 94, 6), ("sorting", 0, 3)]);
        assert_eq!(report.missed().as_deref(), Some("json 0.940 of 0.95"));
        assert!(!report.passed);
        let table = report.table();
        for line in [
            "arithmetic            20     19  0.950  0.95  reached",
            "json                 100     94  0.940  0.95  missed",
            "sorting                3      0  0.000     -  -",
            "all                  123    113  0.919",
            "well formed          123    123  1.000",
        ] {
            assert!(table.lines().any(|l| l == line), "{line:?} is missing from\n{table}");
        }
    }

    #[test]
    fn only_answers_of_bad_form_are_not_well_formed() {
        let mut report = report(&[("sorting", 2, 1)]);
        report.add("sorting", Err(Wrong::Form("nothing was said")));
        assert_eq!((report.items, report.right, report.well_formed), (4, 2, 3));
        assert!(report.passed && report.missed().is_none());
    }
}
